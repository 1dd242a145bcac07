// A folder as Hugging Face keeps a model, for tests to fill.
#pragma once

#include <fstream>
#include <map>
#include <numeric>

#include "layers/models/transformer.h"
#include "src/weights/hugging_face/reader.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/make_model.h"
#include "tests/support/harness.h"
#include "tests/support/temporary_folder.h"

namespace tandem::testing {

inline constexpr const char* kGpt2 =
    R"({"architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_head": 2,
  "n_embd": 6, "n_positions": 9, "vocab_size": 11, "n_inner": null})";
inline constexpr const char* kLlama =
    R"({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1,
  "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 8, "intermediate_size": 5,
  "max_position_embeddings": 64, "vocab_size": 7, "rms_norm_eps": 1e-6,
  "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}})";

class HuggingFaceFolder : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }
  // Replaces `from`, which must be there, in a config.json.
  void write_config(std::string json, const std::string& from = "", const std::string& to = "") {
    const size_t at = json.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write("config.json", json.replace(at, from.size(), to));
  }
  // The tensors of a model without the prefix; each element of all of them is its number.
  void write_weights(const std::string& dtype = "F32", const std::string& without = "",
                     const std::vector<SafetensorsEntry>& more = {}) {
    const ModelConfig config = hugging_face_config(path_).model;
    Transformer model(*config->transformer());
    std::vector<SafetensorsEntry> entries;
    for (const ForeignTensor& tensor : foreign_tensors(model, *config->foreign_names())) {
      const auto sizes = tensor.shape.sizes();
      std::string name = tensor.name.substr(tensor.name.starts_with(without) ? without.size() : 0);
      entries.push_back({std::move(name), dtype, {sizes.begin(), sizes.end()}});
    }
    entries.insert(entries.end(), more.begin(), more.end());
    SafetensorsWriter writer(path_, entries, 1 << 20);
    float first = 0;
    for (const SafetensorsEntry& entry : entries) {
      std::vector<float> values(static_cast<size_t>(entry.elements()));
      const bool is_copy = model.config().tie_embeddings && entry.name == "lm_head.weight";
      std::iota(values.begin(), values.end(), is_copy ? firsts_.at("wte.weight") : first);
      first += static_cast<float>(values.size());
      firsts_[entry.name] = values[0];
      writer.write(values);
    }
    writer.commit();
  }
  static std::vector<float> read(const HuggingFaceReader& reader, const std::string& name,
                                 const Shape& shape, Range range) {
    const Tensor data =
        Tensor::empty(test_memory(), {range.count()}, DType::kF32, MemoryClass::kData);
    reader.read({name, shape, range.begin, data});
    const std::span<float> values = data.as<float>();
    return {values.begin(), values.end()};
  }
  void expect_error(ExitCode code, const std::string& part, const std::function<void()>& work) {
    try {
      work();
      ADD_FAILURE() << "no error, expected " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what() << "\n  lacks " << part;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }

  using Settings = std::map<std::string, std::string>;  // without "model."
  // What hugging_face_config() says of these keys.
  Settings settings(const Settings& keys) const {
    Config config = hugging_face_config(path_);
    Options options("");
    config.bind(options);
    Settings found;
    for (const auto& [key, value] : keys) {
      found[key] = options.text("model." + key);
    }
    return found;
  }

  const TemporaryFolder folder_;
  const std::string& path_ = folder_.path();
  std::map<std::string, float> firsts_;  // the first element of each tensor
};

}  // namespace tandem::testing
