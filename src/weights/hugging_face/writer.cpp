#include "src/weights/hugging_face/writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/device/memory.h"
#include "src/io/file.h"
#include "src/io/safetensors/safetensors.h"
#include "src/weights/hugging_face/names.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

// A tensor to be written, and where it comes from.
struct Exported {
  SafetensorsEntry entry;
  std::string source;             // of the checkpoint
  Shape shape;                    // of the source
  int64_t first = 0;              // element of the source
  int64_t rows = 1, columns = 1;  // of the matrices in the source, which are transposed
};

SafetensorsEntry entry_of(const std::string& name, const Shape& shape, DType dtype) {
  return {name, std::string(safetensors_name_of(dtype)),
          std::vector<int64_t>(shape.sizes().begin(), shape.sizes().end())};
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
  std::vector<SafetensorsEntry> entries;
  entries.reserve(tensors.size());
  for (const Exported& tensor : tensors) {
    entries.push_back(tensor.entry);
  }
  SafetensorsWriter writer(folder, entries, options.shard_bytes);
  for (const Exported& tensor : tensors) {
    Memory host(Device::kCpu);
    const Tensor data =
        Tensor::empty(host, {tensor.entry.elements()}, DType::kF32, MemoryClass::kData);
    weights.read({tensor.source, tensor.shape, tensor.first, data});
    if (tensor.columns > 1) {
      write_transposed(data.as<float>(), tensor.rows, tensor.columns, writer);
    } else {
      writer.write(data.as<float>());
    }
  }
  writer.commit();
}

std::string text_of(const Json& json) { return json.dump(2) + "\n"; }

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

Json llama_config(const TransformerConfig& config) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", config.vocab},
          {"max_position_embeddings", config.context},
          {"hidden_size", config.width},
          {"intermediate_size", config.ffn_width},
          {"num_hidden_layers", config.layers},
          {"num_attention_heads", config.heads},
          {"num_key_value_heads", config.kv_heads},
          {"head_dim", config.width / config.heads},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"rms_norm_eps", config.norm_epsilon},
          {"rope_theta", config.rope.theta},
          {"rope_scaling", rope_scaling(config.rope)}};
}

std::string torch_name_of(DType dtype) {
  return dtype == DType::kF32 ? "float32" : (dtype == DType::kBf16 ? "bfloat16" : "float16");
}

void write_settings(const TransformerConfig& config, const ExportOptions& options,
                    const std::string& folder) {
  const auto token = [](const std::optional<int32_t>& id) {
    return id ? Json(*id) : Json(nullptr);
  };
  const Json before = token(options.around_text.before), end = token(options.around_text.end);
  Json json = config.style.is_rotary ? llama_config(config) : gpt2_config(config);
  json["tie_word_embeddings"] = config.tie_embeddings;
  json["bos_token_id"] = before;
  json["eos_token_id"] = end;
  json["torch_dtype"] = torch_name_of(options.dtype);
  replace_file(folder + "/config.json", text_of(json));
  replace_file(folder + "/generation_config.json",
               text_of({{"bos_token_id", before}, {"eos_token_id", end}}));
}

// torchvision's name of "stem.bn.gain", "stages.0.1.conv_2.weight" or "head.bias".
std::string torchvision_name(const std::string& name) {
  static const std::regex kStage(R"(stages\.(\d+)\.(\d+)\.(conv|bn)_(\d)(.*))");
  std::smatch match;
  std::string theirs;
  if (std::regex_match(name, match, kStage)) {
    theirs = str("layer", std::stoi(match[1]) + 1, ".", match[2].str(), ".", match[3].str(),
                 match[4].str(), match[5].str());
  } else if (name.starts_with("stem.")) {
    theirs = std::regex_replace(name, std::regex(R"(^stem\.(conv|bn))"), "$011");
  } else {
    require(name.starts_with("head."), [&] { return "no parameter of a ResNet: " + name; });
    theirs = "fc." + name.substr(5);
  }
  return std::regex_replace(theirs, std::regex(R"(\.gain$)"), ".weight");
}

}  // namespace

void write_hugging_face(const TensorSource& weights, const TransformerConfig& config,
                        const ExportOptions& options, const std::string& folder) {
  std::vector<Exported> tensors;
  for (const HuggingFaceParameter& parameter : hugging_face_parameters(config)) {
    const std::string source = "param/" + parameter.name;
    weights.require_tensor(source, parameter.shape);
    int64_t first = 0;
    for (const HuggingFaceTensor& part : parameter.parts) {
      Exported tensor{.entry = entry_of(part.name, part.shape, options.dtype),
                      .source = source,
                      .shape = parameter.shape,
                      .first = first};
      if (part.transposed) {
        tensor.rows = part.shape[1];
        tensor.columns = part.shape[0];
      }
      first += part.shape.elements();
      tensors.push_back(std::move(tensor));
    }
  }
  write_all(weights, tensors, options, folder);
  write_settings(config, options, folder);
}

void write_torchvision(const CheckpointReader& checkpoint, const ExportOptions& options,
                       const std::string& folder) {
  std::vector<Exported> tensors;
  for (const CheckpointReader::Entry& entry : checkpoint.tensors()) {
    const Shape& shape = entry.shape;
    Exported tensor{.entry = {}, .source = entry.name, .shape = shape};
    if (entry.name.starts_with("stat/")) {
      const std::string name = torchvision_name(entry.name.substr(5));
      for (const char* statistic : {".running_mean", ".running_var"}) {
        tensor.entry = entry_of(name + statistic, {shape[1]}, options.dtype);
        tensors.push_back(tensor);
        tensor.first += shape[1];
      }
    } else if (entry.name.starts_with("param/")) {
      const std::string name = torchvision_name(entry.name.substr(6));
      tensor.entry = entry_of(name, shape, options.dtype);
      if (shape.rank() == 4) {
        tensor.entry = entry_of(name, {shape[0], shape[3], shape[1], shape[2]}, options.dtype);
        tensor.rows = shape[1] * shape[2];
        tensor.columns = shape[3];
      }
      tensors.push_back(tensor);
    }
  }
  write_all(checkpoint, tensors, options, folder);
}

}  // namespace tandem
