// Transformers that are cut over the ranks of a job, of 1, 2 or 4 ranks.
#include <gtest/gtest.h>

#include "comm/mesh.h"
#include "tests/step/logical_tensors.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"
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
  // Runs an f64 model, and puts together what its ranks have.
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

}  // namespace
}  // namespace tandem::testing
