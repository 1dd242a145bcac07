#include <cmath>
#include <map>

#include "layers/activation/activation.h"
#include "layers/add/add.h"
#include "layers/dropout/dropout.h"
#include "layers/embedding/embedding.h"
#include "layers/linear/linear.h"
#include "layers/rope/rope.h"
#include "tests/support/gradcheck.h"
#include "tests/support/small_transformer.h"

namespace tandem::testing {
namespace {

// Also with tied weights, whose gradient is a sum of two, and with dropout, whose masks must be the
// same in all passes.
TEST(Transformer, GradientsMatchFiniteDifferences) {
  for (bool llama : {false, true}) {
    for (bool tied : {false, true}) {
      for (bool recompute : {false, true}) {
        SCOPED_TRACE(str("llama ", llama, ", tied ", tied, ", recompute ", recompute));
        TransformerConfig config = small(llama);
        config.tie_embeddings = tied;
        Transformer model(config);
        const Tensor tokens = int_tensor({2, 5}, some_tokens(10));
        const Tensor targets = int_tensor({10}, some_tokens(10));
        check_gradients(
            {}, parameters_of(model),
            [&](Context& context, const std::vector<Variable>&) {
              context.recompute = recompute;
              return model.loss(context, tokens, targets).losses;
            },
            0.5);
      }
    }
  }
}

// The models, composed here from their layers and parameter names, to compare bit by bit.
struct Composition {
  Composition(Transformer& model, Context& run_context) : context(run_context) {
    for (Parameter* parameter : parameters_of(model)) {
      by_name[parameter->name] = parameter;
    }
    const TransformerConfig& config = model.config();
    heads = config.head_layout();
    p = config.dropout;
  }
  Parameter& operator[](const std::string& name) { return *by_name.at(name); }
  Variable project(const std::string& name, const Variable& x) {
    const auto bias = by_name.find(name + ".bias");
    return linear(context, x, *by_name.at(name + ".weight"),
                  bias == by_name.end() ? nullptr : bias->second);
  }
  Variable norm(const std::string& name, const Variable& x) {
    return by_name.contains(name + ".bias")
               ? layer_norm(context, x, (*this)[name + ".gain"], (*this)[name + ".bias"])
               : rms_norm(context, x, (*this)[name + ".gain"]);
  }
  Variable gpt_block(const std::string& name, const Variable& x, uint32_t site) {
    const Variable qkv = project(name + "attn.qkv", norm(name + "ln_1", x));
    const Variable y = project(name + "attn.proj", attention(context, qkv, heads));
    const Variable middle = add(context, x, dropout(context, y, p, site));
    const Variable hidden = gelu(context, project(name + "mlp.fc", norm(name + "ln_2", middle)));
    return add(context, middle, dropout(context, project(name + "mlp.proj", hidden), p, site + 1));
  }
  Variable llama_block(const std::string& name, const Variable& x, uint32_t site) {
    const Variable qkv = rope(context, project(name + "attn.qkv", norm(name + "norm_1", x)), heads);
    const Variable y = project(name + "attn.proj", attention(context, qkv, heads));
    const Variable middle = add(context, x, dropout(context, y, p, site));
    const Variable hidden =
        swiglu(context, project(name + "mlp.gate_up", norm(name + "norm_2", middle)));
    return add(context, middle, dropout(context, project(name + "mlp.down", hidden), p, site + 1));
  }
  Context& context;
  std::map<std::string, Parameter*> by_name;
  HeadLayout heads;
  double p = 0;
};

TEST(Transformer, IsTheCompositionOfItsLayers) {
  for (bool llama : {false, true}) {
    SCOPED_TRACE(llama);
    Transformer model(small(llama));
    bind_parameters(parameters_of(model), DType::kF32);
    TestContext test;
    const Tensor tokens = int_tensor({2, 5}, some_tokens(10));
    Composition c(model, test.context);
    Variable x = embedding(test.context, tokens, c["wte"], llama ? nullptr : &c["wpe"]);
    x = dropout(test.context, x, c.p, 0);
    x = llama ? c.llama_block("blocks.0.", x, 1) : c.gpt_block("blocks.0.", x, 1);
    x = llama ? c.llama_block("blocks.1.", x, 3) : c.gpt_block("blocks.1.", x, 3);
    x = c.norm(llama ? "norm_f" : "ln_f", x);
    x = linear(test.context, x, c[llama ? "head.weight" : "wte"], nullptr);
    const Variable logits = model.logits(test.context, tokens);
    EXPECT_EQ(logits.shape(), (Shape{10, 11}));
    EXPECT_EQ(values_of(logits.value()), values_of(x.value()));
  }
}

std::string listing_of(Model& model) {
  std::string listing;
  for (const Block& block : model.blocks()) {
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

// What an imported model may have: more positions than the context, another epsilon, and scaled
// rotary frequencies. Rows beyond the context have no gradient.
TEST(Transformer, SizesAndConstantsOfImportedModels) {
  const Tensor tokens = int_tensor({2, 5}, some_tokens(10)),
               targets = int_tensor({10}, some_tokens(10));
  const auto losses_of = [&](const TransformerConfig& config) {
    Transformer model(config);
    bind_parameters(parameters_of(model), DType::kF64, 1, 0.5);
    TestContext test;
    return values_of(model.loss(test.context, tokens, targets).losses.value());
  };
  for (bool llama : {false, true}) {
    TransformerConfig other = small(llama);
    other.norm_epsilon = 0.1;
    EXPECT_NE(losses_of(other), losses_of(small(llama)));
  }
  TransformerConfig wide = small(true);
  wide.heads = 2;  // two pairs; the first turns by 1 whatever theta is
  TransformerConfig turned = wide;
  turned.rope.theta = 500;
  EXPECT_NE(losses_of(turned), losses_of(wide));
  TransformerConfig config = small(false);
  config.positions = 9;
  Transformer model(config);
  Parameter* wpe = parameters_of(model)[1];
  EXPECT_EQ(str(wpe->name, wpe->shape), "wpe[9, 8]");
  bind_parameters(parameters_of(model), DType::kF64, 1, 0.5);
  TestContext test;
  const Loss loss = model.loss(test.context, tokens, targets);
  test.tape.backward(test.context, loss.losses, random_tensor({10}, DType::kF64, 4));
  for (int64_t row = 0; row < 9; ++row) {
    EXPECT_EQ(wpe->grad.data<double>()[row * 8] != 0, row < 5) << row;
  }
  config.positions = 5;
  EXPECT_THROW(Transformer{config}, Error);
}

// Widths 768 and 4096 give GPT-2's 3072 and a multiple of 32 above 8 C / 3.
TEST(Transformer, DefaultSizes) {
  const auto ffn_width = [](bool llama, int64_t width) {
    return Transformer({.style = llama ? kLlama : kGpt2,
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
  const double attention = 12 * 2 * 8 * 36 / 2.0;
  EXPECT_EQ(Transformer(small(true)).flops_per_sample(), 6 * llama * 6 + attention);
  TransformerConfig config = small(true);
  config.cut = {1, 2};
  EXPECT_EQ(Transformer(config).flops_per_sample(), 6 * llama * 6 + attention);
  // Frozen weights have no product for their gradient. Adapters of 8 x 8 and of 12 x 8 have all
  // three.
  config = small(true);
  config.lora = {.rank = 3, .targets = {"attn.q", "mlp.down"}};
  Transformer tuned(config);
  for (Parameter* parameter : parameters_of(tuned)) {
    parameter->frozen = !is_adapter(parameter->name);
  }
  const double adapters = 2 * 3 * ((8 + 8) + (12 + 8));
  const double first = 128;  // has no product for the gradient of its input, either
  EXPECT_EQ(tuned.flops_per_sample(), (4 * llama - 2 * first + 6 * adapters) * 6 + attention);
  // A frozen first layer has no backward pass.
  Transformer upper(small(true));
  for (const size_t block : {0, 1}) {
    for (Parameter* parameter : upper.blocks()[block].parameters) {
      parameter->frozen = true;
    }
  }
  const double layer = 128 + 64 + 288;
  EXPECT_EQ(upper.flops_per_sample(),
            (6 * llama - 4 * layer) * 6 + attention / 2 + attention / 2 / 3);
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
  EXPECT_THROW(model.logits(test.context, int_tensor({1, 7}, some_tokens(7))), Error);
}

}  // namespace
}  // namespace tandem::testing
