#include "src/weights/hugging_face/writer.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "layers/models/transformer.h"
#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/device/memory.h"
#include "src/io/file.h"
#include "src/io/safetensors/safetensors.h"
#include "src/weights/hugging_face/adapter_files.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

// A tensor to be written, and where it comes from.
struct Exported {
  struct Source {
    std::string name;  // of the checkpoint
    Shape shape;
    Range elements;
  };
  SafetensorsEntry entry;
  std::vector<Source> sources{};  // one after the other
  int64_t rows = 1, columns = 1;  // of the matrices in the sources, which are transposed
};

SafetensorsEntry entry_of(const std::string& name, const Shape& shape, DType dtype) {
  return {name, std::string(safetensors_name_of(dtype)),
          std::vector<int64_t>(shape.sizes().begin(), shape.sizes().end())};
}

// Takes a whole piece, which `weights` must have.
Exported::Source source_of(const Piece& piece, const TensorSource& weights) {
  const Shape& shape = piece.slice.whole();
  weights.require_tensor("param/" + piece.name, shape);
  return {"param/" + piece.name, shape, {0, shape.elements()}};
}

// The transpose of matrices [rows, columns], some of its rows at a time.
void write_transposed(std::span<const float> values, int64_t rows, int64_t columns,
                      SafetensorsWriter& writer) {
  constexpr int64_t kBlock = 1 << 20;  // elements
  const int64_t width = std::clamp<int64_t>(kBlock / rows, 1, columns);
  std::vector<float> block;
  for (int64_t matrix = 0; matrix < std::ssize(values); matrix += rows * columns) {
    for (int64_t first = 0; first < columns; first += width) {
      const int64_t count = std::min(width, columns - first);
      block.resize(static_cast<size_t>(count * rows));
      for (int64_t row = 0; row < rows; ++row) {
        const float* from = &values[static_cast<size_t>(matrix + row * columns + first)];
        for (int64_t i = 0; i < count; ++i) {
          block[static_cast<size_t>(i * rows + row)] = from[i];
        }
      }
      writer.write(block);
    }
  }
}

void write_all(const TensorSource& weights, const std::vector<Exported>& tensors,
               const ExportOptions& options, const std::string& folder) {
  SafetensorsWriter writer(folder, mapped(tensors, &Exported::entry), options.shard_bytes);
  for (const Exported& tensor : tensors) {
    Memory host(Device::kCpu);
    const Tensor data =
        Tensor::empty(host, {tensor.entry.elements()}, DType::kF32, MemoryClass::kData);
    int64_t done = 0;
    for (const Exported::Source& source : tensor.sources) {
      const int64_t count = source.elements.count();
      weights.read({source.name, source.shape, source.elements.begin, data.slice(done, count)});
      done += count;
    }
    if (tensor.columns > 1) {
      write_transposed(data.as<float>(), tensor.rows, tensor.columns, writer);
    } else {
      writer.write(data.as<float>());
    }
  }
  writer.commit();
}

std::string text_of(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// As transformers 4 writes it; 5 reads it, too.
Json rope_scaling(const RopeFrequencies& rope) {
  if (rope.factor == 1) {
    return nullptr;
  }
  Json json = {{"rope_type", "linear"}, {"factor", rope.factor}};
  if (rope.original_context > 0) {
    json["rope_type"] = "llama3";
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    json["original_max_position_embeddings"] = static_cast<int64_t>(rope.original_context);
  }
  return json;
}

Json gpt2_config(const TransformerConfig& config) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", config.vocab},
          {"n_positions", config.positions},
          {"n_embd", config.width},
          {"n_layer", config.layers},
          {"n_head", config.heads},
          {"n_inner", config.ffn_width},
          {"activation_function", "gelu_new"},
          {"resid_pdrop", config.dropout},
          {"embd_pdrop", config.dropout},
          {"attn_pdrop", 0.0},
          {"layer_norm_epsilon", config.norm_epsilon}};
}

struct Family {
  const char *architecture, *model_type;
};

// The architecture of transformers that has what this model has. Throws Error(kConfig) if none has.
Family family_of(const TransformerConfig& config) {
  const bool three_biases = config.qkv_bias && !config.attention_bias;
  if (config.qk_norm && !three_biases) {
    return {"Qwen3ForCausalLM", "qwen3"};
  }
  if (!config.qk_norm && three_biases) {
    return {"Qwen2ForCausalLM", "qwen2"};
  }
  // transformers refuses a Llama of other widths, also where head_dim is given.
  if (!config.qk_norm && config.sliding_window == 0 && config.width % config.heads == 0) {
    return {"LlamaForCausalLM", "llama"};
  }
  if (!config.qk_norm && !config.attention_bias) {
    return {"MistralForCausalLM", "mistral"};
  }
  fail(ExitCode::kConfig, "no architecture of transformers has ",
       config.qk_norm ? "model.qk_norm and model.qkv_bias without model.attention_bias"
                      : "model.attention_bias and model.sliding_window without model.qk_norm, or "
                        "model.attention_bias and a model.width that model.heads does not divide");
}

Json llama_config(const TransformerConfig& config) {
  const Family family = family_of(config);
  Json json = {{"architectures", {family.architecture}},
               {"model_type", family.model_type},
               {"vocab_size", config.vocab},
               {"max_position_embeddings", config.context},
               {"hidden_size", config.width},
               {"intermediate_size", config.ffn_width},
               {"num_hidden_layers", config.layers},
               {"num_attention_heads", config.heads},
               {"num_key_value_heads", config.kv_heads},
               {"head_dim", config.head_width},
               {"hidden_act", "silu"},
               {"attention_bias", config.attention_bias},
               {"mlp_bias", false},
               {"rms_norm_eps", config.norm_epsilon},
               {"rope_theta", config.rope.theta},
               {"rope_scaling", rope_scaling(config.rope)}};
  if (config.sliding_window > 0) {
    json["sliding_window"] = config.sliding_window;
    json["use_sliding_window"] = true;  // of Qwen
    json["max_window_layers"] = 0;      // all layers have one
  } else if (family.model_type == std::string_view("mistral")) {
    json["sliding_window"] = nullptr;  // its default is 4096
  }
  return json;
}

std::string torch_name_of(DType dtype) {
  return dtype == DType::kF32 ? "float32" : (dtype == DType::kBf16 ? "bfloat16" : "float16");
}

// What generation_config.json says, and config.json, too.
Json tokens_around(const ExportOptions& options) {
  const auto json = [](const std::vector<int32_t>& tokens) {
    return tokens.empty() ? Json(nullptr) : tokens.size() == 1 ? Json(tokens[0]) : Json(tokens);
  };
  return {{"bos_token_id", json(options.around_text.before)},
          {"eos_token_id", json(options.around_text.ends)}};
}

Json settings_of(const TransformerConfig& config, const ExportOptions& options) {
  Json json = config.style.is_rotary ? llama_config(config) : gpt2_config(config);
  json["tie_word_embeddings"] = config.tie_embeddings;
  json.update(tokens_around(options));
  json["torch_dtype"] = torch_name_of(options.dtype);
  return json;
}

}  // namespace

void write_hugging_face(const TensorSource& weights, Transformer& model, const ForeignNames& names,
                        const ExportOptions& options, const std::string& folder) {
  const Json settings = settings_of(model.config(), options);
  std::vector<Exported> tensors;
  for (const ForeignTensor& theirs : foreign_tensors(model, names)) {
    Exported tensor{.entry = entry_of(theirs.name, theirs.shape, options.dtype)};
    tensor.sources =
        mapped(theirs.pieces, [&](const Piece& piece) { return source_of(piece, weights); });
    if (theirs.transposed) {
      tensor.rows = theirs.shape[1];
      tensor.columns = theirs.shape[0];
    }
    tensors.push_back(std::move(tensor));
  }
  write_all(weights, tensors, options, folder);
  replace_file(folder + "/config.json", text_of(settings));
  replace_file(folder + "/generation_config.json", text_of(tokens_around(options)));
}

void write_adapters(const TensorSource& weights, Transformer& model, const ForeignNames& names,
                    const ExportOptions& options, const std::string& base,
                    const std::string& folder) {
  std::vector<Exported> tensors;
  for (const Parameter* parameter : parameters_of(model)) {
    for (const Piece& piece : pieces_of(*parameter)) {
      if (is_adapter(piece.name)) {
        tensors.push_back(
            {.entry = entry_of(adapter_name(piece.name, names), piece.slice.whole(), options.dtype),
             .sources = {source_of(piece, weights)}});
      }
    }
  }
  ExportOptions one_file = options;  // peft reads no shards
  one_file.shard_bytes = std::numeric_limits<int64_t>::max();
  write_all(weights, tensors, one_file, folder);
  std::filesystem::rename(folder + "/model.safetensors", folder + "/adapter_model.safetensors");
  const LoraOptions& lora = model.config().lora;
  const Json config = {{"peft_type", "LORA"},
                       {"task_type", "CAUSAL_LM"},
                       {"base_model_name_or_path", base},
                       {"r", lora.rank},
                       {"lora_alpha", lora.alpha},
                       {"lora_dropout", 0.0},
                       {"target_modules", modules_of(lora.targets, names)},
                       {"bias", "none"},
                       {"fan_in_fan_out", names.is_conv1d},
                       {"inference_mode", true}};
  replace_file(folder + "/adapter_config.json", text_of(config));
}

void write_torchvision(const CheckpointReader& checkpoint, const ForeignNames& names,
                       const ExportOptions& options, const std::string& folder) {
  std::vector<Exported> tensors;
  const auto add = [&](const CheckpointReader::Entry& from, Range elements, const std::string& ours,
                       const Shape& shape) -> Exported& {
    return tensors.emplace_back(
        Exported{.entry = entry_of(foreign_name(ours, names), shape, options.dtype),
                 .sources = {{from.name, from.shape, elements}}});
  };
  for (const CheckpointReader::Entry& entry : checkpoint.tensors()) {
    const Shape& shape = entry.shape;
    if (entry.name.starts_with("stat/")) {
      const std::string name = entry.name.substr(5);
      add(entry, {0, shape[1]}, name + ".running_mean", {shape[1]});
      add(entry, {shape[1], 2 * shape[1]}, name + ".running_var", {shape[1]});
    } else if (entry.name.starts_with("param/") && shape.rank() == 4) {
      Exported& tensor = add(entry, {0, shape.elements()}, entry.name.substr(6),
                             {shape[0], shape[3], shape[1], shape[2]});
      tensor.rows = shape[1] * shape[2];
      tensor.columns = shape[3];
    } else if (entry.name.starts_with("param/")) {
      add(entry, {0, shape.elements()}, entry.name.substr(6), shape);
    }
  }
  write_all(checkpoint, tensors, options, folder);
}

}  // namespace tandem
