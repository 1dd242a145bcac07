// Blocks and the tape on a whole model: the order of gates, when gradients are final, and that
// recomputation and accumulation change no result.
#include <algorithm>
#include <cmath>
#include <map>

#include "layers/add/add.h"
#include "layers/linear/linear.h"
#include "layers/models/transformer.h"
#include "src/autograd/block.h"
#include "tests/support/gradcheck.h"

namespace tandem::testing {
namespace {

TransformerConfig small() {
  return {.style = kGpt2,
          .vocab = 13,
          .context = 8,
          .layers = 3,
          .heads = 2,
          .kv_heads = 0,
          .width = 8,
          .ffn_width = 0,
          .dropout = 0.1,
          .tie_embeddings = true};
}

Tensor some_tokens(int64_t batch, int64_t first_sample) {
  std::vector<int32_t> tokens(static_cast<size_t>(batch * 8));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t n = static_cast<int64_t>(i) + 8 * first_sample;
    tokens[i] = static_cast<int32_t>((n * n + 3 * n) % 13);
  }
  return int_tensor({batch, 8}, tokens);
}

// Records every call.
class RecordingGate final : public Gate {
 public:
  void acquire(Context&, BlockId block, Pass pass) override { note("+", block, pass); }
  void release(Context&, BlockId block, Pass pass) override { note("-", block, pass); }
  std::string text;

 private:
  void note(const char* what, BlockId block, Pass pass) {
    text += str(what, pass == Pass::kForward ? "f" : "b", block, " ");
  }
};

struct Outcome {
  std::vector<double> losses;
  std::vector<std::string> final_order;
  std::string gates;
};

// One micro-batch, forward and backward, on parameters that are bound already.
Outcome run_model(Transformer& model, bool recompute, const Tensor& tokens,
                  const StepNumbers& numbers) {
  Outcome run;
  RecordingGate gate;
  Stream stream = Stream::compute(Device::kCpu);
  Tape tape([&](Context&, Parameter& parameter) {
    EXPECT_TRUE(parameter.grad_written) << parameter.name;
    run.final_order.push_back(parameter.name);
    gate.text += parameter.name == "wte" ? "wte! " : "";
  });
  Context context{.stream = stream,
                  .memory = test_memory(),
                  .tape = &tape,
                  .numbers = &numbers,
                  .training = true,
                  .gate = &gate,
                  .recompute = recompute};
  const Variable losses = model.loss(context, tokens, tokens.reshape({tokens.elements()})).losses;
  run.losses = values_of(losses.value());
  tape.backward(context, losses, 1.0);
  EXPECT_EQ(tape.size(), 0);
  run.gates = gate.text;
  return run;
}

std::vector<double> gradients_of(Model& model) {
  std::vector<double> all;
  for (const Parameter* parameter : parameters_of(model)) {
    const std::vector<double> values = values_of(parameter->grad);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(Block, GatesAreCalledAroundEachBlock) {
  const std::string forward = "+f0 -f0 +f1 -f1 +f2 -f2 +f3 -f3 +f4 -f4 ";
  const std::string backward = "+b4 -b4 +b3 -b3 +b2 -b2 +b1 -b1 +b0 wte! -b0 ";
  for (bool recompute : {false, true}) {
    Transformer model(small());
    bind_parameters(parameters_of(model), DType::kF32, 1, 0.1);
    EXPECT_EQ(run_model(model, recompute, some_tokens(2, 0), {}).gates, forward + backward);
  }
}

// The head and the embedding both use the tied embedding, which is final only after backward has
// passed both.
TEST(Block, EveryGradientIsFinalOnceLastFirst) {
  for (bool recompute : {false, true}) {
    SCOPED_TRACE(recompute);
    Transformer model(small());
    bind_parameters(parameters_of(model), DType::kF32, 1, 0.1);
    const Outcome run = run_model(model, recompute, some_tokens(2, 0), {});
    std::vector<std::string> expected;
    for (const Parameter* parameter : parameters_of(model)) {
      expected.push_back(parameter->name);
    }
    std::vector<std::string> actual = run.final_order;
    const auto position = [&](const std::string& name) {
      return std::ranges::find(actual, name) - actual.begin();
    };
    EXPECT_LT(position("ln_f.gain"), position("blocks.2.mlp.proj.weight"));
    EXPECT_LT(position("blocks.2.ln_1.gain"), position("blocks.1.mlp.proj.weight"));
    EXPECT_LT(position("blocks.0.ln_1.gain"), position("wte"));
    EXPECT_EQ(actual, run_model(model, recompute, some_tokens(1, 5), {}).final_order);
    std::ranges::sort(expected);
    std::ranges::sort(actual);
    EXPECT_EQ(actual, expected);
  }
}

TEST(Block, RecomputationChangesNoBit) {
  std::vector<std::vector<double>> results;
  for (bool recompute : {false, true}) {
    Transformer model(small());
    bind_parameters(parameters_of(model), DType::kF32, 1, 0.1);
    results.push_back(
        run_model(model, recompute, some_tokens(3, 0), {.seed = 5, .step = 2}).losses);
    results.push_back(gradients_of(model));
  }
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[1], results[3]);
}

// Two micro-batches one after the other against both at once. In f64 the sums differ only by the
// order of a few hundred terms of order one.
TEST(Block, AccumulationAddsMicroBatches) {
  for (bool recompute : {false, true}) {
    Transformer model(small());
    bind_parameters(parameters_of(model), DType::kF64, 1, 0.1);
    run_model(model, recompute, some_tokens(4, 0), {.seed = 5, .step = 2});
    const std::vector<double> whole = gradients_of(model);

    bind_parameters(parameters_of(model), DType::kF64, 1, 0.1);
    run_model(model, recompute, some_tokens(1, 0), {.seed = 5, .step = 2});
    EXPECT_NE(gradients_of(model), whole);
    run_model(model, recompute, some_tokens(3, 1), {.seed = 5, .step = 2, .first_sample = 1});
    const std::vector<double> parts = gradients_of(model);
    for (size_t i = 0; i < whole.size(); ++i) {
      ASSERT_NEAR(parts[i], whole[i], 1e-12) << i;
    }
  }
}

// A parameter that appears twice in one op, in two ops of a block and in two blocks.
TEST(Block, UseCountsOfSharedParameters) {
  for (bool recompute : {false, true}) {
    Parameter weight{.name = "w", .shape = {4, 4}}, other{.name = "o", .shape = {4, 4}};
    bind_parameters(std::vector<Parameter*>{&weight, &other}, DType::kF64);
    std::map<std::string, int> finals;
    Stream stream = Stream::compute(Device::kCpu);
    Tape tape([&](Context&, Parameter& parameter) { ++finals[parameter.name]; });
    Context context{
        .stream = stream, .memory = test_memory(), .tape = &tape, .recompute = recompute};
    const auto body = [&](Context& inner, const Flow& x) -> Flow {
      return {add(inner, linear(inner, x[0], weight, nullptr),
                  linear(inner, linear(inner, x[0], weight, nullptr), other, nullptr))};
    };
    Flow x = {Variable(random_tensor({3, 4}, DType::kF64, 1))};
    for (BlockId id : {0, 1}) {
      x = run_block(context, id, body, x);
      EXPECT_TRUE(finals.empty());
    }
    tape.backward(context, x[0], 1.0);
    EXPECT_EQ(finals, (std::map<std::string, int>{{"w", 1}, {"o", 1}}));
  }
}

// A block whose result nobody uses has no gradient, but its parameters still become final in every
// pass.
TEST(Block, AnUnusedBlockIsFinalInEveryPass) {
  for (bool recompute : {false, true}) {
    Parameter weight{.name = "w", .shape = {4, 4}}, idle{.name = "idle", .shape = {4, 4}};
    bind_parameters(std::vector<Parameter*>{&weight, &idle}, DType::kF64);
    std::map<std::string, int> finals;
    Stream stream = Stream::compute(Device::kCpu);
    Tape tape([&](Context&, Parameter& parameter) { ++finals[parameter.name]; });
    Context context{
        .stream = stream, .memory = test_memory(), .tape = &tape, .recompute = recompute};
    for (int pass = 1; pass <= 2; ++pass) {
      const Variable x(random_tensor({3, 4}, DType::kF64, 1));
      const auto times = [&](BlockId id, Parameter& parameter) {
        const auto body = [&](Context& inner, const Flow& in) -> Flow {
          return {linear(inner, in[0], parameter, nullptr)};
        };
        return run_block(context, id, body, {x})[0];
      };
      times(0, idle);
      tape.backward(context, times(1, weight), 1.0);
      EXPECT_EQ(finals, (std::map<std::string, int>{{"w", pass}, {"idle", pass}}));
    }
  }
}

// Before the first parameter that wants a gradient, backward differentiates nothing and opens no
// gate. A block after that parameter passes the gradient on.
TEST(Block, WithoutWantedParametersIsNotDifferentiated) {
  for (bool recompute : {false, true}) {
    Transformer model(small());
    bind_parameters(parameters_of(model), DType::kF32, 1, 0.1);
    for (Parameter* parameter : parameters_of(model)) {
      parameter->frozen = parameter->name != "blocks.1.mlp.fc.weight";
      parameter->grad = parameter->frozen ? Tensor() : parameter->grad;
    }
    const Outcome run = run_model(model, recompute, some_tokens(2, 0), {});
    EXPECT_EQ(run.gates, "+f0 -f0 +f1 -f1 +f2 -f2 +f3 -f3 +f4 -f4 +b4 -b4 +b3 -b3 +b2 -b2 ");
    EXPECT_EQ(run.final_order, std::vector<std::string>{"blocks.1.mlp.fc.weight"});
  }
}

// Without a tape (inference) nothing is kept, but gates are still opened.
TEST(Block, WithoutTape) {
  Transformer model(small());
  bind_parameters(parameters_of(model), DType::kF32, 1, 0.1);
  TestContext test;
  test.context.tape = nullptr;
  RecordingGate gate;
  test.context.gate = &gate;
  test.context.recompute = true;
  EXPECT_FALSE(model.logits(test.context, some_tokens(1, 0)).wanted());
  EXPECT_EQ(gate.text, "+f0 -f0 +f1 -f1 +f2 -f2 +f3 -f3 +f4 -f4 ");
}

// A block that is not recomputed leaves the addition at its end to the norm of the next block: it
// hands on its branch beside the residual stream. A recomputed block hands on a single tensor.
TEST(Block, OfATransformerHandsItsBranchOn) {
  Transformer model(small());
  bind_parameters(parameters_of(model), DType::kF32, 1, 0.1);
  std::string texts[2];
  for (bool recompute : {false, true}) {
    TestContext test;
    test.context.recompute = recompute;
    model.logits(test.context, some_tokens(1, 0));
    texts[recompute] = test.tape.text();
  }
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(texts[0], "block_entry, block 1\nop 5: layer_norm blocks.0.ln_1.gain"));
  EXPECT_TRUE(has(texts[0], "block_entry, block 4\nop 43: add -> f32 [8, 8], block 4\n"))
      << texts[0];
  EXPECT_EQ(texts[1],
            "op 0: segment -> f32 [8, 8], block 0\n"
            "op 1: segment -> f32 [8, 8], block 1\n"
            "op 2: segment -> f32 [8, 8], block 2\n"
            "op 3: segment -> f32 [8, 8], block 3\n"
            "op 4: block_entry, block 4\n"
            "op 5: layer_norm ln_f.gain ln_f.bias -> f32 [8, 8], block 4\n"
            "op 6: linear wte -> f32 [8, 13], block 4\n"
            "op 7: block_exit, block 4\n");
}

// A block of three tensors: a mixture, a product, and its first tensor unchanged.
struct ThreeTensors {
  Parameter weight{.name = "w", .shape = {4, 4}}, other{.name = "o", .shape = {4, 4}};
  std::vector<Parameter*> parameters = {&weight, &other};
  BlockBody body = [this](Context& context, const Flow& x) -> Flow {
    return {add(context, x[0], linear(context, x[2], other, nullptr)),
            linear(context, x[1], weight, nullptr), x[0]};
  };
  Flow run(Context& context, Flow x) {
    for (BlockId id : {0, 1, 2}) {
      x = run_block(context, id, body, std::move(x));
    }
    return x;
  }
};

TEST(BlockOfSeveralTensors, GradientsMatchFiniteDifferences) {
  for (bool recompute : {false, true}) {
    SCOPED_TRACE(recompute);
    ThreeTensors blocks;
    check_gradients({{3, 4}, {3, 4}, {3, 4}}, blocks.parameters,
                    [&](Context& context, const std::vector<Variable>& in) {
                      context.recompute = recompute;
                      const Flow y = blocks.run(context, in);
                      // An input is used outside too, and one result twice.
                      return add(context, add(context, y[0], y[1]),
                                 add(context, add(context, y[2], in[0]), y[2]));
                    });
  }
}

// Whichever results are used and whichever inputs want a gradient, recomputation changes neither
// the gradients nor when parameters are final. The values are whole numbers, whose sums are exact
// in any order.
TEST(BlockOfSeveralTensors, RecomputationChangesNothing) {
  const auto whole = [](uint64_t seed) {
    const Tensor tensor = random_tensor({4, 4}, DType::kF64, seed, 4);
    std::ranges::transform(tensor.as<double>(), tensor.data<double>(),
                           [](double x) { return std::round(x); });
    return tensor;
  };
  const auto run = [&](bool recompute, unsigned used, unsigned wanted, std::string& finals) {
    ThreeTensors blocks;
    bind_parameters(blocks.parameters, DType::kF64);
    blocks.weight.value = whole(1);
    blocks.other.value = whole(2);
    Stream stream = Stream::compute(Device::kCpu);
    Tape tape([&](Context&, Parameter& parameter) { finals += parameter.name; });
    Context context{
        .stream = stream, .memory = test_memory(), .tape = &tape, .recompute = recompute};
    Flow x;
    for (unsigned i = 0; i < 3; ++i) {
      const Tensor value = whole(3 + i);
      x.push_back((wanted >> i & 1) != 0 ? Variable::leaf(value) : Variable(value));
    }
    const Flow y = blocks.run(context, x);
    Variable sum(whole(9));
    for (unsigned i = 0; i < 3; ++i) {
      sum = (used >> i & 1) != 0 ? add(context, sum, y[i]) : sum;
    }
    EXPECT_TRUE(sum.wanted());
    tape.backward(context, sum, whole(6));
    EXPECT_EQ(tape.size(), 0);
    std::vector<std::vector<double>> gradients;
    for (const Variable& input : x) {
      const bool arrived = input.wanted() && input.slot()->grad;
      gradients.push_back(arrived ? values_of(input.slot()->grad) : std::vector<double>());
    }
    for (const Parameter* parameter : blocks.parameters) {
      gradients.push_back(parameter->grad_written ? values_of(parameter->grad)
                                                  : std::vector<double>());
    }
    return gradients;
  };
  for (unsigned used = 1; used < 8; ++used) {
    for (unsigned wanted = 0; wanted < 8; ++wanted) {
      SCOPED_TRACE(str("results ", used, ", inputs ", wanted));
      std::string finals, finals_again;
      EXPECT_EQ(run(true, used, wanted, finals_again), run(false, used, wanted, finals));
      EXPECT_EQ(finals_again, finals);
      EXPECT_EQ(finals.size(), 2u);
    }
  }
}

TEST(BlockOfSeveralTensors, WithoutWantedParametersOrInputsIsNotRecorded) {
  for (bool recompute : {false, true}) {
    ThreeTensors blocks;
    bind_parameters(blocks.parameters, DType::kF32);
    blocks.weight.frozen = blocks.other.frozen = true;
    TestContext test;
    test.context.recompute = recompute;
    const Variable x(random_tensor({3, 4}, DType::kF32, 1)), leaf = Variable::leaf(x.value());
    EXPECT_TRUE(std::ranges::none_of(blocks.run(test.context, {x, x, x}), &Variable::wanted));
    EXPECT_EQ(test.tape.size(), 0);
    const Flow y = run_block(test.context, 0, blocks.body, {x, leaf, x});
    EXPECT_FALSE(y[0].wanted());
    EXPECT_TRUE(y[1].wanted());
    EXPECT_FALSE(y[2].wanted());
    test.tape.backward(test.context, y[1], 1.0);
    EXPECT_TRUE(static_cast<bool>(leaf.slot()->grad));
  }
}

}  // namespace
}  // namespace tandem::testing
