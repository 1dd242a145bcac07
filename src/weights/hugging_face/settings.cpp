#include "src/weights/hugging_face/settings.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "src/core/visible_text.h"
#include "src/weights/hugging_face/json_keys.h"

namespace tandem {

namespace {

// A key of config.json, our setting, and what transformers takes where the key is left out; without
// that, the key must be there, with a positive whole number.
struct Key {
  const char *theirs, *ours, *otherwise = "";
};
constexpr Key kGpt2Keys[] = {{"n_layer", "model.layers"},
                             {"n_head", "model.heads"},
                             {"n_embd", "model.width"},
                             {"n_positions", "model.context"},
                             {"n_positions", "model.positions"},
                             {"vocab_size", "model.vocab"},
                             {"layer_norm_epsilon", "model.norm_eps", "1e-5"},
                             {"tie_word_embeddings", "model.tie_embeddings", "true"}};
constexpr Key kLlamaKeys[] = {{"num_hidden_layers", "model.layers"},
                              {"num_attention_heads", "model.heads"},
                              {"hidden_size", "model.width"},
                              {"intermediate_size", "model.ffn_width"},
                              {"max_position_embeddings", "model.context"},
                              {"vocab_size", "model.vocab"},
                              {"rms_norm_eps", "model.norm_eps", "1e-6"},
                              {"tie_word_embeddings", "model.tie_embeddings", "false"}};

// Whether a family of models has sliding windows: where use_sliding_window says so, or where
// sliding_window is not null.
enum class Windows : uint8_t { kNever, kIfUsed, kUnlessNull };

// What differs between the architectures of kind llama.
struct LlamaFamily {
  bool has_qkv_bias = false;
  bool reads_attention_bias = false;  // whether the key decides
  bool has_qk_norm = false;
  std::optional<int64_t> kv_heads{};    // where the key is left out; none: as many as heads
  std::optional<int64_t> head_width{};  // where head_dim is left out; none: width / heads
  Windows windows = Windows::kNever;
};

class Translation {
 public:
  explicit Translation(const JsonKeys& keys) : keys_(keys) {}

  // `theirs`: the key that decides the value.
  void set(const std::string& setting, const std::string& value, const std::string& theirs = "") {
    settings_.push_back({setting, value, keys_.path()});
    theirs_.emplace_back(theirs);
  }
  void set_number(const std::string& setting, const JsonKeys& keys, const std::string& theirs) {
    set(setting, keys.text(theirs), keys.name(theirs));
  }
  void set_all(std::span<const Key> table) {
    for (const auto& [theirs, ours, otherwise] : table) {
      const bool is_size = *otherwise == 0;
      set(ours, is_size ? str(keys_.positive(theirs)) : keys_.text(theirs, otherwise), theirs);
    }
  }
  void set_gpt2();
  void set_llama(const LlamaFamily& family);
  // Error kData in their words where no model has these values.
  std::vector<Assignment> checked() const;

 private:
  void set_rope();
  std::string layer_type() const;
  int64_t window(Windows windows) const;

  const JsonKeys& keys_;
  std::vector<Assignment> settings_;
  std::vector<std::string> theirs_;  // for each of settings_
};

std::vector<Assignment> Translation::checked() const {
  Config config;
  Options options("");
  config.bind(options);
  std::vector<std::string> problems = options.apply(settings_);
  for (const std::string& problem : config.model->problems()) {
    problems.push_back(keys_.path() + ": " + problem);
  }
  if (problems.empty()) {
    return settings_;
  }
  std::string problem = problems[0].substr(keys_.path().size());
  for (size_t i = 0; i < settings_.size(); ++i) {
    const size_t at = theirs_[i].empty() ? problem.npos : problem.find(settings_[i].key);
    if (at != problem.npos) {
      problem.replace(at, settings_[i].key.size(), theirs_[i]);
    }
  }
  fail_data(keys_.path() + problem);
}

void Translation::set_gpt2() {
  keys_.require("activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "gelu_new");
  keys_.require("scale_attn_weights", {true}, "true");
  keys_.require("scale_attn_by_inverse_layer_idx", {false}, "false");
  keys_.require("add_cross_attention", {false}, "false");
  set("model.kind", "gpt");
  set_all(kGpt2Keys);
  set("model.ffn_width",
      str(keys_.find("n_inner") ? keys_.positive("n_inner") : 4 * keys_.positive("n_embd")),
      "n_inner");
}

void Translation::set_llama(const LlamaFamily& family) {
  keys_.require("hidden_act", {"silu", "swish"}, "silu");
  keys_.require("mlp_bias", {false}, "false");
  keys_.require("partial_rotary_factor", {1.0}, "1");
  set("model.kind", "llama");
  set_all(kLlamaKeys);
  const int64_t heads = keys_.positive("num_attention_heads");
  const auto given_or = [&](const char* key, std::optional<int64_t> left_out, int64_t null) {
    return keys_.find(key)      ? keys_.positive(key)
           : keys_.is_null(key) ? null
                                : left_out.value_or(null);
  };
  const char* const kKvHeads = "num_key_value_heads";
  set("model.kv_heads", str(given_or(kKvHeads, family.kv_heads, heads)), kKvHeads);
  const int64_t head_width = given_or("head_dim", family.head_width, 0);
  const bool is_usual = head_width * heads == keys_.positive("hidden_size");
  set("model.head_width", str(is_usual ? 0 : head_width), "head_dim");
  set("model.qkv_bias", family.has_qkv_bias ? "true" : "false");
  set("model.qk_norm", family.has_qk_norm ? "true" : "false");
  set("model.sliding_window", str(window(family.windows)), "sliding_window");
  set("model.attention_bias",
      family.reads_attention_bias ? keys_.text("attention_bias", "false") : "false");
  set_rope();
}

// What layer_types says of all layers; nothing where it is left out.
std::string Translation::layer_type() const {
  const Json* types = keys_.find("layer_types");
  if (!types) {
    return "";
  }
  const auto count = [&](const char* type) { return std::ranges::count(*types, type); };
  const int64_t layers = keys_.positive("num_hidden_layers"), full = count("full_attention");
  if (!types->is_array() || std::ssize(*types) != layers ||
      full + count("sliding_attention") != layers) {
    keys_.wrong("layer_types",
                str("full_attention or sliding_attention for each of ", layers, " layers"));
  }
  keys_.require("layer_types", {Json(std::vector(types->size(), types->front()))},
                "one kind of layer in a model");
  return types->front();
}

// The sliding window of all layers; 0: none. In transformers it is 4096 where the key is left out,
// and layers from max_window_layers on have one, unless layer_types names each.
int64_t Translation::window(Windows windows) const {
  if (windows == Windows::kNever) {
    keys_.require("sliding_window", {}, "no window");
  } else if (windows == Windows::kUnlessNull) {
    keys_.require("layer_types", {}, "the window of all layers");
  }
  const bool may_be_used = windows == Windows::kIfUsed
                               ? keys_.text("use_sliding_window", "false") == "true"
                               : windows == Windows::kUnlessNull;
  const bool is_used = may_be_used && !keys_.is_null("sliding_window");
  const int64_t size = keys_.find("sliding_window") ? keys_.positive("sliding_window") : 4096;
  const std::string type = layer_type();
  if (type == "sliding_attention" && !is_used) {
    keys_.wrong("layer_types", "full_attention where no window is used");
  }
  if (!is_used || type == "full_attention") {
    return 0;
  }
  if (windows == Windows::kIfUsed && type.empty()) {
    const Json& first = keys_.at("max_window_layers");
    if (!first.is_number_unsigned()) {
      keys_.wrong("max_window_layers", "a whole number");
    }
    if (first >= keys_.positive("num_hidden_layers")) {
      return 0;
    }
    keys_.require("max_window_layers", {0}, "one kind of layer in a model");
  }
  return size;
}

// transformers 5 writes rope_parameters; 4 writes rope_theta, and rope_scaling where there is one.
void Translation::set_rope() {
  const bool is_new = keys_.find("rope_parameters") != nullptr;
  const std::string name = is_new ? "rope_parameters" : "rope_scaling";
  const JsonKeys rope = keys_.object(name), older = keys_.object("rope_scaling");
  for (const auto& [key, value] : older.json().items()) {
    if (!rope.json().contains(key) || rope.json().at(key) != value) {
      fail_data(keys_.path(), ": rope_parameters and rope_scaling differ in ", visible(key),
                ", and programs read the one or the other; leave out one of them");
    }
  }
  if (rope.has_objects()) {
    keys_.refuse(name, "the same for all layers");
  }
  rope.require("partial_rotary_factor", {1.0}, "1");
  const std::string theta = keys_.text("rope_theta", "10000");
  set("model.rope_theta", rope.text("rope_theta", theta), "rope_theta");
  const std::string type_key = rope.find("rope_type") ? "rope_type" : "type";
  rope.require(type_key, {"default", "linear", "llama3"}, "default, linear, llama3");
  const std::string type = rope.find(type_key) ? rope.at(type_key) : Json("default");
  set("model.rope_scaling", type == "default" ? "none" : type);
  if (type != "default") {
    set_number("model.rope_factor", rope, "factor");
  }
  if (type == "llama3") {
    set_number("model.rope_low_freq_factor", rope, "low_freq_factor");
    set_number("model.rope_high_freq_factor", rope, "high_freq_factor");
    set_number("model.rope_original_context", rope, "original_max_position_embeddings");
  }
}

struct Architecture {
  const char *name, *model_type;
  std::optional<LlamaFamily> llama;  // none: GPT-2
};
const Architecture kArchitectures[] = {
    {"GPT2LMHeadModel", "gpt2", {}},
    {"LlamaForCausalLM", "llama", {{.reads_attention_bias = true}}},
    {"MistralForCausalLM", "mistral", {{.kv_heads = 8, .windows = Windows::kUnlessNull}}},
    {"Qwen2ForCausalLM",
     "qwen2",
     {{.has_qkv_bias = true, .kv_heads = 32, .windows = Windows::kIfUsed}}},
    {"Qwen3ForCausalLM",
     "qwen3",
     {{.reads_attention_bias = true,
       .has_qk_norm = true,
       .kv_heads = 32,
       .head_width = 128,
       .windows = Windows::kIfUsed}}}};

// By `architectures`, or by `model_type` in a config.json without one.
const Architecture& architecture_of(const JsonKeys& keys) {
  const bool is_listed = keys.find("architectures") != nullptr;
  const std::string key = is_listed ? "architectures" : "model_type";
  if (!keys.find(key)) {
    fail_data(keys.path() + ": has neither architectures nor model_type");
  }
  std::vector<std::string> known;
  for (const Architecture& one : kArchitectures) {
    if (*keys.find(key) == (is_listed ? Json::array({one.name}) : Json(one.model_type))) {
      return one;
    }
    known.emplace_back(one.name);
  }
  keys.refuse(key, joined(known) + "; save a LlamaModel as a LlamaForCausalLM");
}

}  // namespace

bool is_hugging_face(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // such as a name that is too long
  return fs::exists(path + "/config.json", ignored) &&
         !fs::exists(path + "/manifest.json", ignored);
}

std::vector<Assignment> hugging_face_settings(const std::string& folder) {
  const JsonKeys keys = JsonKeys::of(folder + "/config.json");
  Translation translation(keys);
  const Architecture& architecture = architecture_of(keys);
  keys.require("quantization_config", {}, "weights of F32, F16 and BF16");
  keys.require("is_causal", {true}, "true");
  architecture.llama ? translation.set_llama(*architecture.llama) : translation.set_gpt2();
  return translation.checked();
}

Config hugging_face_config(const std::string& folder) {
  Config config;
  const JsonKeys keys = JsonKeys::of(folder + "/config.json");
  if (const Json* name = keys.find(keys.find("dtype") ? "dtype" : "torch_dtype")) {
    config.train.precision = *name == "bfloat16"  ? DType::kBf16
                             : *name == "float16" ? DType::kFp16
                                                  : DType::kF32;
  }
  Options options("");
  config.bind(options);
  fail_if_any(options.apply(hugging_face_settings(folder)));
  return config;
}

std::vector<int32_t> hugging_face_tokens(const std::string& folder, const std::string& key) {
  std::string path = folder + "/generation_config.json";
  if (!std::filesystem::exists(path)) {
    path = folder + "/config.json";
  }
  const JsonKeys keys = JsonKeys::of(path);
  const Json* value = keys.find(key);
  if (!value) {
    return {};
  }
  std::vector<int32_t> tokens;
  for (const Json& token : value->is_array() ? *value : Json::array({*value})) {
    if (!token.is_number_unsigned() || !std::in_range<int32_t>(token.get<uint64_t>())) {
      fail_data(path, ": ", key, " = ", shown(*value), " is no token");
    }
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

}  // namespace tandem
