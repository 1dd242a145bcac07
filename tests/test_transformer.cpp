#include <cmath>

#include "layers/cross_entropy.h"
#include "layers/decoder.h"
#include "layers/transformer.h"
#include "tests/gradcheck.h"

namespace tandem::testing {
namespace {

TransformerConfig small(bool llama) {
  return {.llama = llama,
          .vocab = 11,
          .context = 6,
          .layers = 2,
          .heads = 4,
          .kv_heads = llama ? 2 : 0,
          .width = 8,
          .ffn_width = llama ? 12 : 0,
          .dropout = 0.2,
          .tie_embeddings = !llama,
          .recompute = false};
}

std::vector<Parameter*> parameters_of(Model& model) {
  std::vector<Parameter*> all;
  for (const BlockParameters& block : model.blocks()) {
    all.insert(all.end(), block.parameters.begin(), block.parameters.end());
  }
  return all;
}

std::vector<int32_t> some_tokens(int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>((i * i + 3 * i) % 11);
  }
  return tokens;
}

// Also with tied weights, whose gradient has two parts, and with dropout, whose masks must be the
// same in all passes.
TEST(Transformer, GradientsMatchFiniteDifferences) {
  for (bool llama : {false, true}) {
    for (bool tied : {false, true}) {
      for (bool recompute : {false, true}) {
        SCOPED_TRACE(str("llama ", llama, ", tied ", tied, ", recompute ", recompute));
        TransformerConfig config = small(llama);
        config.tie_embeddings = tied;
        config.recompute = recompute;
        Transformer model(config);
        OpenGate gate;
        const Tensor tokens = int_tensor({2, 5}, some_tokens(10));
        const Tensor targets = int_tensor({10}, some_tokens(10));
        check_gradients(
            {}, parameters_of(model),
            [&](Context& context, const std::vector<Variable>&) {
              return cross_entropy(context, model.forward(context, gate, tokens), targets);
            },
            0.5);
      }
    }
  }
}

std::string listing_of(Model& model) {
  std::string listing;
  for (const BlockParameters& block : model.blocks()) {
    listing += block.name + ":";
    for (const Parameter* parameter : block.parameters) {
      EXPECT_EQ(parameter->decay, parameter->shape.rank() > 1) << parameter->name;
      listing += str(" ", parameter->name, parameter->shape, "=", parameter->init.scale);
    }
    listing += "\n";
  }
  return listing;
}

TEST(Transformer, GptParametersByBlock) {
  TransformerConfig config = small(false);
  config.layers = 1;
  Transformer model(config);
  EXPECT_EQ(
      listing_of(model),
      str("embedding: wte[11, 8]=0.02 wpe[6, 8]=0.02\n",
          "blocks.0: blocks.0.ln_1.gain[8]=1 blocks.0.ln_1.bias[8]=0 ",
          "blocks.0.attn.qkv.weight[24, 8]=0.02 ",
          "blocks.0.attn.qkv.bias[24]=0 blocks.0.attn.proj.weight[8, 8]=", 0.02 / std::sqrt(2.0),
          " blocks.0.attn.proj.bias[8]=0 ", "blocks.0.ln_2.gain[8]=1 blocks.0.ln_2.bias[8]=0 ",
          "blocks.0.mlp.fc.weight[32, 8]=0.02 blocks.0.mlp.fc.bias[32]=0 ",
          "blocks.0.mlp.proj.weight[8, 32]=", 0.02 / std::sqrt(2.0),
          " blocks.0.mlp.proj.bias[8]=0\n", "head: ln_f.gain[8]=1 ln_f.bias[8]=0\n"));
}

TEST(Transformer, LlamaParametersByBlock) {
  TransformerConfig config = small(true);
  config.layers = 1;
  config.ffn_width = 0;
  Transformer model(config);
  EXPECT_EQ(listing_of(model),
            str("embedding: wte[11, 8]=0.02\n",
                "blocks.0: blocks.0.norm_1.gain[8]=1 blocks.0.attn.qkv.weight[16, 8]=0.02 ",
                "blocks.0.attn.proj.weight[8, 8]=", 0.02 / std::sqrt(2.0),
                " blocks.0.norm_2.gain[8]=1 blocks.0.mlp.gate_up.weight[64, 8]=0.02 ",
                "blocks.0.mlp.down.weight[8, 32]=", 0.02 / std::sqrt(2.0), "\n",
                "head: norm_f.gain[8]=1 head.weight[11, 8]=0.02\n"));
}

// Widths 768 and 4096 give GPT-2's 3072 and a multiple of 32 above 8 C / 3.
TEST(Transformer, DefaultSizes) {
  const auto ffn_width = [](bool llama, int64_t width) {
    return Transformer({.llama = llama,
                        .vocab = 2,
                        .context = 1,
                        .layers = 1,
                        .heads = 1,
                        .kv_heads = 0,
                        .width = width})
        .config()
        .ffn_width;
  };
  EXPECT_EQ(ffn_width(false, 768), 3072);
  EXPECT_EQ(ffn_width(true, 768), 2048);
  EXPECT_EQ(ffn_width(true, 128), 352);
  EXPECT_EQ(Transformer(small(false)).config().kv_heads, 4);
}

TEST(Transformer, FlopsPerSample) {
  // Products of GPT: 2 layers of 24 * 8 + 8 * 8 + 2 * 8 * 32 weights, and the head's 11 * 8.
  const double gpt = 2 * (192 + 64 + 512) + 88;
  EXPECT_EQ(Transformer(small(false)).flops_per_sample(), 6 * gpt * 6 + 12 * 2 * 8 * 36 / 2.0);
  // Llama: 2 key-value heads for 4 heads, three matrices of 8 * 12.
  const double llama = 2 * (128 + 64 + 288) + 88;
  EXPECT_EQ(Transformer(small(true)).flops_per_sample(), 6 * llama * 6 + 12 * 2 * 8 * 36 / 2.0);
}

TEST(Transformer, ImpossibleSizesNameTheKey) {
  const auto message_of = [](const TransformerConfig& config) -> std::string {
    try {
      Transformer model(config);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      return error.what();
    }
    return "no error";
  };
  TransformerConfig config = small(false);
  config.heads = 3;
  EXPECT_NE(message_of(config).find("model.heads"), std::string::npos);
  config = small(true);
  config.kv_heads = 3;
  EXPECT_NE(message_of(config).find("model.kv_heads"), std::string::npos);
  config = small(true);
  config.width = 12;  // heads of width 3
  EXPECT_NE(message_of(config).find("even"), std::string::npos);
  config = small(false);
  config.dropout = 1;
  EXPECT_NE(message_of(config).find("model.dropout"), std::string::npos);
  config.vocab = 0;
  EXPECT_NE(message_of(config).find("vocab"), std::string::npos);
}

TEST(Transformer, SequenceLongerThanTheContext) {
  Transformer model(small(false));
  bind_parameters(parameters_of(model), DType::kF32);
  TestContext test;
  OpenGate gate;
  EXPECT_THROW(model.forward(test.context, gate, int_tensor({1, 7}, some_tokens(7))), Error);
}

// A model ready to decode, and the logits [T, vocab] of a whole forward pass for comparison.
struct Generation {
  explicit Generation(TransformerConfig config) : model(config) {
    bind_parameters(parameters_of(model), DType::kF64, 1, 0.5);
    test.context.tape = nullptr;
    test.context.training = false;
  }
  std::vector<double> last_logits(std::span<const int32_t> tokens) {
    const Tensor input = int_tensor({1, static_cast<int64_t>(tokens.size())}, tokens);
    const std::vector<double> all = values_of(model.forward(test.context, gate, input).value());
    return std::vector<double>(all.end() - model.config().vocab, all.end());
  }
  Transformer model;
  OpenGate gate;
  TestContext test;
};

// f64, sums of at most a few hundred terms of order one in about ten operations one behind the
// other: 1e-16 * 300 * 10 = 3e-13 leaves room below 1e-10.
void expect_close(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-10) << "logit " << i;
  }
}

TEST(Decoder, StepsEqualTheWholeForwardPass) {
  for (bool llama : {false, true}) {
    for (int64_t prompt : {1, 3}) {
      TransformerConfig config = small(llama);
      config.context = 100;
      Generation run(config);
      Decoder decoder(run.model, run.gate, run.test.stream, test_memory());
      const std::vector<int32_t> tokens = some_tokens(100);
      const std::span<const int32_t> all(tokens);
      expect_close(values_of(decoder.prefill(all.first(prompt))),
                   run.last_logits(all.first(prompt)));
      for (int64_t n = prompt; n < 100; ++n) {
        const std::vector<double> logits = values_of(decoder.step(tokens[n]));
        if (n % 9 == 0 || n == 99) {
          expect_close(logits, run.last_logits(all.first(n + 1)));
        }
      }
      EXPECT_EQ(decoder.length(), 100);
    }
  }
}

// Context 6: step 7 keeps the last 3 tokens, and the window grows again to 6.
TEST(Decoder, WindowSlidesWhenTheContextIsFull) {
  Generation run(small(true));
  Decoder decoder(run.model, run.gate, run.test.stream, test_memory());
  const std::vector<int32_t> tokens = some_tokens(20);
  const std::span<const int32_t> all(tokens);
  decoder.prefill(all.first(1));
  int64_t held = 1;
  for (int64_t n = 1; n < 20; ++n) {
    held = held == 6 ? 3 : held + 1;
    const std::vector<double> logits = values_of(decoder.step(tokens[n]));
    EXPECT_EQ(decoder.length(), held);
    expect_close(logits, run.last_logits(all.subspan(n + 1 - held, held)));
  }
}

TEST(Decoder, PrefillStartsAnewAndKeepsTheLastTokens) {
  Generation run(small(false));
  Decoder decoder(run.model, run.gate, run.test.stream, test_memory());
  const std::vector<int32_t> tokens = some_tokens(20);
  const std::span<const int32_t> all(tokens);
  decoder.prefill(all.first(4));
  const Tensor logits = decoder.prefill(all);
  EXPECT_EQ(decoder.length(), 6);
  expect_close(values_of(logits), run.last_logits(all.last(6)));
  EXPECT_THROW(decoder.prefill({}), Error);
}

TEST(Decoder, ContextOfOne) {
  TransformerConfig config = small(false);
  config.context = 1;
  Generation run(config);
  Decoder decoder(run.model, run.gate, run.test.stream, test_memory());
  const std::vector<int32_t> tokens = {3, 5};
  decoder.prefill(std::span(tokens).first(1));
  expect_close(values_of(decoder.step(5)), run.last_logits(std::span(tokens).last(1)));
}

}  // namespace
}  // namespace tandem::testing
