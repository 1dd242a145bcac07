// Training steps of transformers on a mesh of data x tensor ranks, 2 or 4 in all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "comm/mesh.h"
#include "optim/adamw.h"
#include "src/step/training_step.h"
#include "tests/step/logical_tensors.h"
#include "tests/support/device_ranks.h"
#include "tests/support/small_transformer.h"

namespace tandem::testing {
namespace {

constexpr int64_t kLength = 6;

class TensorTraining : public ::testing::Test {
 protected:
  static constexpr int64_t kGlobal = 8, kSteps = 3;

  struct Trained {
    Tensors weights{}, gradients{};  // after all steps; of the first one
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
    TrainingStep training(
        model, {mesh.stage(), mesh.data(), mesh.tensor()}, test.stream, memory, staging,
        {.batch = {kGlobal, plan.micro_batch, mesh.size(Axis::kData)},
         .recompute = plan.recompute,
         .exact = plan.exact,
         .clip_norm = 0.5,
         .store = plan.store,
         .optimizer = [](std::span<const Shard> shards, const OptimizerMemory& state) {
           return make_optimizer(AdamWOptions{.weight_decay = 0.1}, shards, state);
         }});
    training.store().values.initialize(1);
    const int64_t tokens = plan.micro_batch * kLength;
    const std::vector<int32_t> all = some_tokens(kGlobal * kLength + 1);
    Trained trained;
    for (int64_t step = 0; step < kSteps; ++step) {
      const WireCount before = mesh.tensor() ? mesh.tensor()->wire() : WireCount();
      const StepRecord::Copy copy = training.run(
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
      mesh.stage().wait(copy.done);
      trained.losses.push_back(copy.loss());
      trained.norms.push_back(copy.step_state().grad_norm);
      if (!plan.exact) {
        expect_norm(trained.norms.back(), training, mesh, model);
      }
      if (step == 0) {
        for_each_owned(training.store().shards,
                       [&](const Parameter& parameter, int64_t first, const Tensor& gradient) {
                         put(trained.gradients, parameter, first, gradient);
                       });
        join(trained.gradients, model, mesh);
      }
      if (mesh.tensor()) {  // it may sum gradients, too
        const WireCount sent = mesh.tensor()->wire() - before;
        exchanged_ = sent.of(Traffic::kAllGather).total() + sent.of(Traffic::kAllToAll).total();
      }
    }
    test.stream.synchronize();
    for (const ParamValues::Weights& weights : training.store().values.saved_weights()) {
      put(trained.weights, *weights.parameter, weights.offset, weights.data);
    }
    join(trained.weights, model, mesh);
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

  // Puts together what the ranks of a stage own of a model's tensors.
  static void join(Tensors& tensors, const Transformer& model, const Mesh& mesh) {
    for (const Parameter* parameter : parameters_of(model)) {
      for (const Piece& piece : pieces_of(*parameter)) {
        std::vector<double>& values = tensors[piece.name];
        values.resize(static_cast<size_t>(piece.slice.whole().elements()));
        values = mesh.stage().control().sum(values);
      }
    }
  }

  // Calls visit(parameter, first element, gradient) for what this rank owns.
  template <class F>
  static void for_each_owned(const OptimizerShards& shards, F visit) {
    for (size_t shard = 0; shard < shards.all().size(); ++shard) {
      for (const Extent& extent : shards.saved_extents(shard)) {
        visit(shards.parameter(extent), extent.in_parameter,
              shards.all()[shard].grad.slice(extent.in_flat, extent.count));
      }
    }
  }

  // Each element of the gradient counts once, whoever has it. The norm is a sum in f64.
  static void expect_norm(double norm, TrainingStep& training, const Mesh& mesh,
                          const Transformer& model) {
    double squares = 0, elements = 0, expected = 0;
    for_each_owned(training.store().shards, [&](const Parameter&, int64_t, const Tensor& gradient) {
      elements += static_cast<double>(gradient.elements());
      for (const double g : values_of(gradient)) {
        squares += g * g;
      }
    });
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

// From the input to a gradient there are some 50 ops, each of which rounds once, and in f32 adds up
// to 48 products. So much of a tensor's largest gradient may the results differ by. A bias of keys
// has no gradient but such errors.
TEST_F(TensorTraining, GradientsAreThoseOfOneRank) {
  if (world.size() == 1 || world.size() == 3) {
    GTEST_SKIP() << "for two or four ranks";
  }
  for_each_device([&](Device device) {
    for (const bool llama : {false, true}) {
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        const double bound = dtype == DType::kF32 ? 50 * 48 * 0x1p-24 : 50 * 0x1p-9;
        const Tensors one = train({.shape = {.islands = world.size(), .data = 1},
                                   .store = {.dtype = dtype},
                                   .llama = llama},
                                  device)
                                .gradients;
        const Tensors cut = train({.shape = {.tensor = world.size()},
                                   .store = {.zero = 2, .dtype = dtype},
                                   .llama = llama},
                                  device)
                                .gradients;
        for (const auto& [name, values] : one) {
          if (name.ends_with("attn.k.bias")) {
            continue;
          }
          const double largest = std::fabs(
              *std::ranges::max_element(values, {}, [](double value) { return std::fabs(value); }));
          ASSERT_GT(largest, 0) << name;
          for (size_t i = 0; i < values.size(); ++i) {
            ASSERT_NEAR(cut.at(name)[i], values[i], bound * largest)
                << name << ' ' << i << ' ' << name_of(dtype);
          }
        }
      }
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
