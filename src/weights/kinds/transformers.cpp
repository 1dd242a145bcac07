// gpt and llama.
#include "layers/models/transformer.h"
#include "src/weights/kinds/kinds.h"

namespace tandem {

namespace {

class TransformerKind : public ModelKind {
 public:
  std::vector<std::string> problems() const override { return transformer()->problems(); }
  std::string description() const override {
    return str(sizes_.layers, " layers, ", sizes_.heads, " heads, width ", sizes_.width,
               ", context ", sizes_.context);
  }
  bool reads_text() const override { return true; }
  int64_t context() const override { return sizes_.context; }
  int64_t blocks() const override { return sizes_.layers; }
  std::optional<TransformerConfig> transformer() const override { return sizes_; }

  std::unique_ptr<Model> make(const DatasetInfo& data) const override {
    return make_of(*transformer(), data);
  }
  std::unique_ptr<Model> make_of(TransformerConfig config, const DatasetInfo& data) const override {
    if (config.vocab > 0 && config.vocab < data.vocab_size) {
      fail_data(data.path, ": the tokenizer has ", data.vocab_size,
                " tokens, but the model's vocabulary is model.vocab = ", config.vocab,
                "; prepare the data with the model's tokenizer");
    }
    config.vocab = config.vocab > 0 ? config.vocab : data.vocab_size;
    return std::make_unique<Transformer>(config);
  }

 protected:
  void bind_sizes(Options& o) {
    o.add("model.layers", sizes_.layers, "transformer blocks", 1, 10000);
    o.add("model.heads", sizes_.heads, "attention heads", 1, 10000);
    o.add("model.width", sizes_.width, "size of the residual stream", 1, 1 << 20);
    o.add("model.ffn_width", sizes_.ffn_width,
          "inner size of the feed-forward part; 0: 4 x width (llama 8/3)", 0, 1 << 24);
    o.add("model.context", sizes_.context, "tokens a sequence", 1, 1 << 24);
    o.add("model.vocab", sizes_.vocab,
          "rows of the embedding; 0: the tokenizer's; more are never sampled", 0, 1 << 24);
    o.add("model.dropout", sizes_.dropout, "probability of dropping an activation", 0, 0.99);
    o.add("model.tie_embeddings", sizes_.tie_embeddings,
          "one matrix for the token embedding and the output");
    o.add("model.norm_eps", sizes_.norm_epsilon, "added to the variance in norms", 1e-12, 1);
  }

  TransformerConfig sizes_{.context = 64, .layers = 4, .heads = 4, .width = 128};
};

// GPT2LMHeadModel; its linear layers are Conv1D.
const ForeignNames kGpt2LmHeadModel{
    .words = {{"wte", "transformer.wte.weight"},
              {"wpe", "transformer.wpe.weight"},
              {"blocks.", "transformer.h."},
              {"ln_f.", "transformer.ln_f."},
              {"head.", "lm_head."},
              {"attn.qkv.", "attn.c_attn."},
              {"attn.proj.", "attn.c_proj."},
              {"mlp.fc.", "mlp.c_fc."},
              {"mlp.proj.", "mlp.c_proj."},
              {".gain", ".weight"}},
    .is_conv1d = true,
    .buffers = {".attn.bias", ".attn.masked_bias"}};  // causal masks

const ForeignNames kLlamaForCausalLm{.words = {{"wte", "model.embed_tokens.weight"},
                                               {"blocks.", "model.layers."},
                                               {"norm_f.", "model.norm."},
                                               {"head.", "lm_head."},
                                               {"norm_1.", "input_layernorm."},
                                               {"norm_2.", "post_attention_layernorm."},
                                               {"attn.q.", "self_attn.q_proj."},
                                               {"attn.k.", "self_attn.k_proj."},
                                               {"attn.v.", "self_attn.v_proj."},
                                               {"attn.q_norm.", "self_attn.q_norm."},
                                               {"attn.k_norm.", "self_attn.k_norm."},
                                               {"attn.proj.", "self_attn.o_proj."},
                                               {"mlp.gate.", "mlp.gate_proj."},
                                               {"mlp.up.", "mlp.up_proj."},
                                               {"mlp.down.", "mlp.down_proj."},
                                               {".gain", ".weight"}},
                                     .buffers = {".rotary_emb.inv_freq"}};

class Gpt final : public TransformerKind {
 public:
  void bind(Options& o) override {
    bind_sizes(o);
    o.add("model.positions", sizes_.positions, "learned positions of gpt; 0: as many as context", 0,
          1 << 24);
  }
  const ForeignNames* foreign_names() const override { return &kGpt2LmHeadModel; }
};

class Llama final : public TransformerKind {
 public:
  Llama() { sizes_.style = kLlama; }

  void bind(Options& o) override {
    bind_sizes(o);
    o.add("model.kv_heads", sizes_.kv_heads, "key and value heads of llama; 0: as many as heads", 0,
          10000);
    o.add("model.head_width", sizes_.head_width, "size of one head of llama; 0: width / heads", 0,
          1 << 20);
    o.add("model.qkv_bias", sizes_.qkv_bias, "biases of llama's queries, keys and values");
    o.add("model.attention_bias", sizes_.attention_bias,
          "biases of llama's queries, keys, values and attention projection");
    o.add("model.qk_norm", sizes_.qk_norm,
          "norms of llama's heads of queries and keys before they are rotated");
    o.add("model.sliding_window", sizes_.sliding_window,
          "keys that a query of llama sees at most, its own included; 0: all", 0, 1 << 24);
    o.add("model.rope_theta", rope_.theta, "base of llama's rotary frequencies", 1, 1e12);
    o.add_choice(
        "model.rope_scaling", scaling_,
        {{"none", Scaling::kNone}, {"linear", Scaling::kLinear}, {"llama3", Scaling::kLlama3}},
        "how rotary frequencies are lowered for long contexts");
    o.only_if(
        "model.rope_scaling", [this] { return scaling_ != Scaling::kNone; },
        [&] {
          o.add("model.rope_factor", rope_.factor, "by which scaling divides frequencies", 1, 1e6);
        });
    o.only_if(
        "model.rope_scaling", [this] { return scaling_ == Scaling::kLlama3; },
        [&] {
          o.add("model.rope_low_freq_factor", rope_.low_freq_factor,
                "turns in the original context, up to which llama3 divides a frequency", 0, 1e6);
          o.add("model.rope_high_freq_factor", rope_.high_freq_factor,
                "turns in the original context, from which llama3 keeps a frequency", 0, 1e6);
          o.add("model.rope_original_context", original_context_,
                "context of pretraining, before llama3 scaling", 1, 1 << 24);
        });
  }

  const ForeignNames* foreign_names() const override { return &kLlamaForCausalLm; }

  std::optional<TransformerConfig> transformer() const override {
    TransformerConfig config = sizes_;
    config.rope.theta = rope_.theta;
    if (scaling_ != Scaling::kNone) {
      config.rope.factor = rope_.factor;
    }
    if (scaling_ == Scaling::kLlama3) {
      config.rope = rope_;
      config.rope.original_context = static_cast<double>(original_context_);
    }
    return config;
  }

 private:
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3 };
  Scaling scaling_ = Scaling::kNone;
  RopeFrequencies rope_{.factor = 8};
  int64_t original_context_ = 8192;
};

}  // namespace

void add_transformers(Kinds<ModelKind>& kinds) {
  kinds.add("gpt", Gpt());
  kinds.add("llama", Llama());
}

}  // namespace tandem
