// Transformers that are cut over the ranks of a job, of 1, 2 or 4 ranks.
#include <gtest/gtest.h>

#include "comm/mesh.h"
#include "optim/adamw.h"
#include "src/step/training_step.h"
#include "tests/step/logical_tensors.h"
#include "tests/support/device_ranks.h"
#include "tests/support/harness.h"
#include "tests/support/small_transformer.h"

namespace tandem::testing {
namespace {

constexpr int64_t kBatch = 2, kLength = 6;

struct Case {
  const char* name;
  TransformerConfig config;
  bool recompute = false;
};

// Samples are cut, too: on 4 ranks each has half of a sample's rows.
std::vector<Case> cases() {
  TransformerConfig gpt = small(false), llama = small(true);
  llama.heads = 8, llama.kv_heads = 4, llama.width = 16;
  TransformerConfig untied = gpt, tied = llama;
  untied.tie_embeddings = false;
  tied.tie_embeddings = true;
  return {{"gpt", gpt},     {"gpt, untied", untied}, {"gpt, recomputed", gpt, true},
          {"llama", llama}, {"llama, tied", tied},   {"llama, recomputed", llama, true}};
}

class TensorParallel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world.size() == 1 || world.size() == 3) {
      GTEST_SKIP() << "for two or four ranks";
    }
  }

  Mesh mesh_of(int tensor) {
    return Mesh(world.control, world.collectives, test_memory(),
                std::vector<int>(static_cast<size_t>(world.size()), 0), Sharing::kWorld,
                {.islands = world.size() / tensor, .data = 1, .tensor = tensor});
  }

  struct Result {
    Tensors values{}, gradients{};
    std::vector<double> losses{}, correct{};
  };
  // Of f64 models, put together.
  Result run(const Case& of, int tensor) {
    const Mesh mesh = mesh_of(tensor);
    TransformerConfig config = of.config;
    config.cut = {mesh.index(Axis::kTensor), tensor};
    Transformer model(config);
    Memory memory(Device::kCpu);
    ParamId id = 0;
    for (Parameter* parameter : parameters_of(model)) {
      const Shape stored = stored_shape(*parameter, Device::kCpu);
      parameter->id = id++;
      parameter->value = Tensor::zeros(memory, stored, DType::kF64, MemoryClass::kParameters);
      parameter->grad = unwritten(stored, DType::kF64);
    }
    TestContext test(Device::kCpu, {.seed = 1, .step = 3, .first_sample = 5});
    test.context.tensor = mesh.tensor() ? &mesh.tensor()->collectives() : nullptr;
    const auto add = [&](Tensors& all, Tensor Parameter::*view) {
      for (const Parameter* parameter : parameters_of(model)) {
        // Padding is zero, and in no piece.
        put(all, *parameter, 0,
            (parameter->*view)
                .reshape({(parameter->*view).elements()})
                .slice(0, parameter->shape.elements()));
      }
    };
    Result result;
    for (Parameter* parameter : parameters_of(model)) {
      initialize(*parameter, 1);
      const bool is_gain = parameter->name.ends_with("gain");
      for (double& value : std::span(parameter->value.data<double>(),
                                     static_cast<size_t>(parameter->shape.elements()))) {
        value = is_gain ? value : 20 * value;  // otherwise gradients are as small as roundings
      }
    }
    add(result.values, &Parameter::value);
    std::vector<int32_t> targets = some_tokens(kBatch * kLength + 1);
    targets.erase(targets.begin());
    targets[4] = kIgnoreTarget;
    const Tensor tokens = int_tensor({kBatch, kLength}, some_tokens(kBatch * kLength));
    const Tensor wanted = int_tensor({kBatch * kLength}, targets);
    {
      TestContext evaluation;
      evaluation.context.tape = nullptr;
      evaluation.context.training = false;
      evaluation.context.tensor = test.context.tensor;
      const Tensor correct = model.loss(evaluation.context, tokens, wanted).correct;
      result.correct = {static_cast<double>(correct.data<int64_t>()[0])};
    }
    test.context.training = true;
    test.context.recompute = of.recompute;
    const Variable losses = model.loss(test.context, tokens, wanted).losses;
    result.losses = values_of(losses.value());
    test.tape.backward(test.context, losses, 0.5);
    add(result.gradients, &Parameter::grad);
    // The mesh's islands compute the same. What is not cut is the same on all ranks of a stage.
    for (auto& [name, values] : result.gradients) {
      values = mesh.stage().control().sum(values);
    }
    result.losses = mesh.stage().control().sum(result.losses);
    result.correct = mesh.stage().control().sum(result.correct);
    for (auto& [name, values] : result.values) {
      std::vector<double> holders(values.size(), 0);
      Tensors one;
      for (const Parameter* parameter : parameters_of(model)) {
        for (const Piece& piece : pieces_of(*parameter)) {
          for (int64_t i = 0; piece.name == name && i < piece.slice.elements(); ++i) {
            holders[static_cast<size_t>(piece.slice.run_at(i).begin)] += 1;
          }
        }
      }
      values = mesh.stage().control().sum(values);
      holders = mesh.stage().control().sum(holders);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] /= holders[i];
      }
    }
    return result;
  }

  const Ranks world = test_ranks();
};

// The keys of random numbers are names of logical tensors.
TEST_F(TensorParallel, InitialValuesAreThoseOfOneRank) {
  for (const Case& of : cases()) {
    SCOPED_TRACE(of.name);
    const Result one = run(of, 1), cut = run(of, world.size());
    EXPECT_EQ(cut.values, one.values);
  }
}

// Both compute the same sums in f64, in another order: of at most 24 addends. Each of some 30 ops
// adds relative errors of some 2^-53 = 1e-16.
TEST_F(TensorParallel, GradientsAreThoseOfOneRank) {
  double correct = 0;
  for (const Case& of : cases()) {
    SCOPED_TRACE(of.name);
    const Result one = run(of, 1), cut = run(of, world.size());
    ASSERT_EQ(cut.gradients.size(), one.gradients.size());
    for (const auto& [name, values] : one.gradients) {
      ASSERT_EQ(cut.gradients.at(name).size(), values.size()) << name;
      double largest = 0, error = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        largest = std::max(largest, std::fabs(values[i]));
        const double here = std::fabs(values[i] - cut.gradients.at(name)[i]);
        error = here <= error ? error : here;  // NaN stays
      }
      // A bias of keys moves all scores of a query alike: its gradient is 0, but for roundings.
      const bool is_zero = name.ends_with("attn.k.bias");
      EXPECT_TRUE(is_zero ? largest < 1e-13 : largest > 1e-6) << name << ' ' << largest;
      EXPECT_LE(error, 1e-11 * (is_zero ? 1 : largest)) << name;
    }
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(cut.losses[i], one.losses[i], 1e-12) << i;
    }
    EXPECT_EQ(cut.correct, one.correct);
    correct += one.correct[0];
  }
  EXPECT_GT(correct, 0);
}

// Training steps on a mesh of data x tensor ranks.
class TensorTraining : public ::testing::Test {
 protected:
  static constexpr int64_t kGlobal = 8, kSteps = 3;

  struct Trained {
    Tensors weights{};
    std::vector<double> losses{}, norms{};
    bool operator==(const Trained&) const = default;
  };
  struct Plan {
    MeshShape shape{};
    StoreOptions store{};
    bool exact = false, recompute = false;
    int64_t micro_batch = 2;
    bool llama = false;
  };

  Mesh mesh_of(const MeshShape& shape, Device device) {
    return Mesh(world.control, collectives_.of(device), test_memory(device),
                std::vector<int>(static_cast<size_t>(world.size()), 0), Sharing::kWorld, shape);
  }

  static TransformerConfig config_of(const Plan& plan) {
    TransformerConfig config = small(plan.llama);
    config.heads = 8, config.kv_heads = plan.llama ? 4 : 0, config.width = 16;
    return config;
  }

  Trained train(const Plan& plan, Device device) {
    const Mesh mesh = mesh_of(plan.shape, device);
    TransformerConfig config = config_of(plan);
    config.cut = mesh.cut();
    Transformer model(config);
    TestContext test(device);
    Memory memory(test.stream);
    Memory staging = device == Device::kCuda ? Memory::pinned() : Memory(Device::kCpu);
    TrainingStep training(model, mesh.model(), test.stream, memory, staging,
                          {.batch = {kGlobal, plan.micro_batch, mesh.size(Axis::kData)},
                           .recompute = plan.recompute,
                           .exact = plan.exact,
                           .clip_norm = 0.5,
                           .store = plan.store,
                           .optimizer = [](std::span<const Shard> shards, Memory& state) {
                             return make_optimizer(AdamWOptions{.weight_decay = 0.1}, shards,
                                                   state);
                           }});
    training.store().values.initialize(1);
    const int64_t tokens = plan.micro_batch * kLength;
    const std::vector<int32_t> all = some_tokens(kGlobal * kLength + 1);
    Trained trained;
    for (int64_t step = 0; step < kSteps; ++step) {
      const WireCount before = mesh.tensor() ? mesh.tensor()->wire() : WireCount();
      training.run(
          {.step = step, .lr = 0.01, .targets = kGlobal * kLength, .batch = [&](int64_t number) {
             const int64_t first =
                 mesh.index(Axis::kData) * kGlobal / mesh.size(Axis::kData) * kLength +
                 number * tokens;
             const auto part = [&](int64_t from) {
               return to_device(int_tensor({plan.micro_batch, kLength},
                                           std::span(all).subspan(static_cast<size_t>(from),
                                                                  static_cast<size_t>(tokens))),
                                device);
             };
             return DeviceBatch{part(first), part(first + 1).reshape({tokens})};
           }});
      const StepRecord::Copy copy = training.record().copy_to_host();
      mesh.stage().wait(copy.done);
      trained.losses.push_back(copy.loss());
      trained.norms.push_back(copy.step_state().grad_norm);
      if (!plan.exact) {
        expect_norm(trained.norms.back(), training, mesh, model);
      }
      if (mesh.tensor()) {  // it may sum gradients, too
        const WireCount sent = mesh.tensor()->wire() - before;
        exchanged_ = sent.of(Traffic::kAllGather).total() + sent.of(Traffic::kAllToAll).total();
      }
    }
    test.stream.synchronize();
    for (const ParamValues::Weights& weights : training.store().values.owned_weights()) {
      put(trained.weights, *weights.parameter, weights.offset, weights.data);
    }
    for (const Parameter* parameter : parameters_of(model)) {
      for (const Piece& piece : pieces_of(*parameter)) {
        std::vector<double>& values = trained.weights[piece.name];
        values.resize(static_cast<size_t>(piece.slice.whole().elements()));
        values = mesh.stage().control().sum(values);
      }
    }
    for (const ParamValues::Weights& weights : training.store().values.weights()) {
      const std::vector<double> here = values_of(weights.data);
      visit_pieces(*weights.parameter, {weights.offset, weights.offset + weights.data.elements()},
                   [&](const Piece& piece, Range in_slice, int64_t begin) {
                     for (int64_t i = 0; i < in_slice.count(); ++i) {
                       const Range at = piece.slice.run_at(in_slice.begin + i);
                       same_ =
                           same_ && here[static_cast<size_t>(begin + i)] ==
                                        trained.weights[piece.name][static_cast<size_t>(at.begin)];
                     }
                   });
    }
    mesh.stage().stream().synchronize();
    test.stream.synchronize();
    return trained;
  }

  // Each element of the gradient counts once, whoever has it. The norm is a sum in f64.
  static void expect_norm(double norm, TrainingStep& training, const Mesh& mesh,
                          const Transformer& model) {
    const OptimizerShards& shards = training.store().shards;
    double squares = 0, elements = 0, expected = 0;
    for (size_t shard = 0; shard < shards.all().size(); ++shard) {
      for (const Extent& extent : shards.owned_extents(shard)) {
        elements += static_cast<double>(extent.count);
        for (const double g :
             values_of(shards.all()[shard].grad.slice(extent.in_flat, extent.count))) {
          squares += g * g;
        }
      }
    }
    for (const Parameter* parameter : parameters_of(model)) {
      for (const Piece& piece : pieces_of(*parameter)) {
        expected += static_cast<double>(piece.slice.whole().elements());
      }
    }
    const std::vector<double> sums = mesh.stage().control().sum(std::vector{squares, elements});
    EXPECT_EQ(sums[1], expected);
    EXPECT_NEAR(norm, std::sqrt(sums[0]), 1e-12 * norm);
  }

  const Ranks world = test_ranks();
  DeviceRanks collectives_;
  int64_t exchanged_ = 0;  // bytes that this rank sent to its tensor group in the last step
  bool same_ = true;       // whether this rank has the values that their owners have
};

// (N - 1) / N of the rows for each exchange of activations: forward and backward of four a layer
// and of two around the blocks, and each column-parallel layer's input again; three numbers a row
// for the loss. Recomputation exchanges the forward ones of layers again.
TEST_F(TensorTraining, BytesOfExchangesAreThoseOfTheFormula) {
  if (world.size() % 2 != 0) {
    GTEST_SKIP() << "for two or four ranks";
  }
  for_each_device([&](Device device) {
    for (const int tensor : {2, world.size()}) {
      for (const bool recompute : {false, true}) {
        for (const DType dtype : {DType::kF32, DType::kBf16}) {
          train({.shape = {.tensor = tensor}, .store = {.dtype = dtype}, .recompute = recompute},
                device);
          const int64_t rows = kGlobal * kLength / (world.size() / tensor);  // of all micro-steps
          const int64_t layers = 2, exchanges = layers * (recompute ? 14 : 10) + 5;
          EXPECT_EQ(exchanged_, (tensor - 1) * rows / tensor * 16 * size_of(dtype) * exchanges +
                                    (tensor - 1) * rows * 12)
              << tensor << recompute << name_of(dtype);
        }
      }
    }
  });
}

// At one tensor size, data ranks, ZeRO's stages, the division into micro-steps, overlap and
// recomputation change no bit of exact sums.
TEST_F(TensorTraining, ExactSumsHaveOneHash) {
  if (world.size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  for_each_device([&](Device device) {
    const Trained alone = train({.shape = {.islands = 2, .tensor = 2}, .exact = true}, device);
    for (int zero = 0; zero <= 3; ++zero) {
      SCOPED_TRACE(str("stage ", zero));
      const Trained both = train({.shape = {.data = 2, .tensor = 2},
                                  .store = {.overlap = zero % 2 == 0, .zero = zero},
                                  .exact = true,
                                  .recompute = zero > 1},
                                 device);
      EXPECT_EQ(both, alone);
      EXPECT_TRUE(same_);
    }
  });
}

// Ten exchanges a layer, in f32: a sum of 16 numbers has a relative error of 16 * 2^-24 = 1e-6, and
// a few ops in a row ten times that. An element of a gradient that is smaller than its error may
// move by the learning rate in either direction; the loss depends on it by less than that.
TEST_F(TensorTraining, LossesAreThoseOfOneRank) {
  if (world.size() == 1 || world.size() == 3) {
    GTEST_SKIP() << "for two or four ranks";
  }
  for_each_device([&](Device device) {
    for (const bool llama : {false, true}) {
      const Trained one =
          train({.shape = {.islands = world.size(), .data = 1}, .llama = llama}, device);
      for (int zero = 0; zero <= 3; ++zero) {
        SCOPED_TRACE(str("stage ", zero, llama ? ", llama" : ""));
        same_ = true;
        const Trained cut = train({.shape = {.tensor = zero == 1 ? world.size() : 2},
                                   .store = {.zero = zero},
                                   .llama = llama},
                                  device);
        EXPECT_TRUE(same_);
        for (size_t step = 0; step < one.losses.size(); ++step) {
          EXPECT_NEAR(cut.losses[step], one.losses[step], 1e-5 * one.losses[step]);
          EXPECT_NEAR(cut.norms[step], one.norms[step], 1e-4 * one.norms[step]);
        }
      }
    }
  });
}

}  // namespace
}  // namespace tandem::testing
