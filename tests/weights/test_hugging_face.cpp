// Models in folders as Hugging Face keeps them, made here by our writer.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>

#include "layers/models/transformer.h"
#include "src/weights/hugging_face/reader.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/make_model.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

namespace fs = std::filesystem;
constexpr const char* kGpt2 = R"({"architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_head": 2,
  "n_embd": 6, "n_positions": 9, "vocab_size": 11, "n_inner": null})";
constexpr const char* kLlama = R"({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1,
  "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 8, "intermediate_size": 5,
  "max_position_embeddings": 64, "vocab_size": 7, "rms_norm_eps": 1e-6,
  "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}})";

class Folder : public ::testing::Test {
 protected:
  Folder() {
    path_ = (fs::temp_directory_path() / "tandem-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~Folder() override { fs::remove_all(path_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name) << text;
  }
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

  std::string path_;
  std::map<std::string, float> firsts_;  // the first element of each tensor
};

TEST_F(Folder, SettingsOfGpt2) {
  write_config(kGpt2);
  EXPECT_TRUE(is_hugging_face(path_));
  const Settings plain{{"kind", "gpt"},    {"layers", "2"},     {"heads", "2"},
                       {"width", "6"},     {"ffn_width", "24"}, {"context", "9"},
                       {"positions", "9"}, {"vocab", "11"},     {"norm_eps", "1e-05"},
                       {"dropout", "0"},   {"freeze", ""},      {"tie_embeddings", "true"}};
  EXPECT_EQ(settings(plain), plain);
  write_config(kGpt2, "\"n_inner\": null", R"("n_inner": 10, "layer_norm_epsilon": 0.5,
      "tie_word_embeddings": false, "activation_function": "gelu_pytorch_tanh")");
  const Settings other{{"ffn_width", "10"}, {"norm_eps", "0.5"}, {"tie_embeddings", "false"}};
  EXPECT_EQ(settings(other), other);
  write("manifest.json", "{}");
  EXPECT_FALSE(is_hugging_face(path_));  // a checkpoint
}

TEST_F(Folder, SettingsOfLlama) {
  write_config(kLlama);
  const Settings want{{"kind", "llama"},
                      {"layers", "1"},
                      {"heads", "4"},
                      {"kv_heads", "2"},
                      {"width", "8"},
                      {"ffn_width", "5"},
                      {"context", "64"},
                      {"positions", "0"},
                      {"vocab", "7"},
                      {"norm_eps", "1e-06"},
                      {"tie_embeddings", "false"},
                      {"rope_theta", "5e+05"},
                      {"rope_scaling", "llama3"},
                      {"rope_factor", "32"},
                      {"rope_low_freq_factor", "1"},
                      {"rope_high_freq_factor", "4"},
                      {"rope_original_context", "16"}};
  EXPECT_EQ(settings(want), want);
}

// The published models have as many parameters as their publishers say.
TEST_F(Folder, PublishedModels) {
  const auto parameters = [&] {
    const TransformerConfig model = *hugging_face_config(path_).model->transformer();
    Transformer transformer(model);
    return parameter_count(transformer).all;
  };
  write("config.json", R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024,
    "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
    "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
    "summary_type": "cls_index", "summary_use_proj": true, "task_specific_params":
    {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})");
  EXPECT_EQ(parameters(), 124'439'808);
  write("config.json", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling":
    {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
     "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
    "vocab_size": 128256})");
  EXPECT_EQ(parameters(), 1'235'814'400);
}

// Whatever stands in config.json is read or refused in one line; nothing else is thrown.
TEST_F(Folder, AnyConfigIsReadOrRefused) {
  constexpr const char* kPieces[] = {"null",
                                     "true",
                                     "-1",
                                     "1e999",
                                     "0.5",
                                     "18446744073709551615",
                                     "\"x\"",
                                     "[]",
                                     "{}",
                                     "[\"GPT2LMHeadModel\"]",
                                     "{",
                                     "}",
                                     ",",
                                     "\"",
                                     "\\",
                                     "\xff",
                                     "4294967297",
                                     "\"llama3\"",
                                     ""};
  std::mt19937 random(7);
  int refused = 0, read = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string text = i % 2 ? kGpt2 : kLlama;
    for (size_t changes = 1 + random() % 2; changes > 0; --changes) {
      // From a byte, or from after a colon, to the next comma or a little further on.
      size_t begin = random() % text.size();
      const size_t colon = text.find(": ", begin);
      begin = random() % 2 && colon != std::string::npos ? colon + 2 : begin;
      const size_t comma = text.find(',', begin);
      const size_t end = random() % 2 && comma != std::string::npos ? comma : begin + random() % 3;
      text.replace(begin, std::min(end, text.size()) - begin,
                   kPieces[random() % std::size(kPieces)]);
    }
    write("config.json", text);
    try {
      hugging_face_config(path_);
      hugging_face_end_tokens(path_);
      ++read;
    } catch (const Error& error) {
      ++refused;
      ASSERT_TRUE(error.code() == ExitCode::kConfig || error.code() == ExitCode::kData)
          << error.what() << "\n"
          << text;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(read, 10);
}

// As transformers 4 writes them, and older versions of it.
TEST_F(Folder, RotaryFrequenciesOfOlderFiles) {
  const std::string all(kLlama);
  const std::string head = all.substr(0, all.find("\"rope_parameters\""));
  write("config.json", head + R"("rope_theta": 300.5, "rope_scaling": null})");
  const auto frequencies = [&] { return hugging_face_config(path_).model->transformer()->rope; };
  EXPECT_EQ(frequencies().theta, 300.5);
  EXPECT_EQ(frequencies().factor, 1);
  write("config.json", head + R"("rope_scaling": {"type": "linear", "factor": 2.0}})");
  EXPECT_EQ(frequencies().theta, 10000);
  EXPECT_EQ(frequencies().factor, 2);
  EXPECT_EQ(frequencies().original_context, 0);  // linear
  write("config.json", head + R"("rope_scaling": {"rope_type": "default"}})");
  EXPECT_EQ(frequencies().factor, 1);
}

TEST_F(Folder, WhatOurModelsLackIsAnError) {
  struct Case {
    const char *config, *from, *to, *part;
  };
  for (const Case& c :
       {Case{kGpt2, "GPT2LMHeadModel", "BertModel", "architectures = [\"BertModel\"]"},
        Case{kGpt2, "\"n_inner\": null", R"("activation_function": "relu")",
             "activation_function = \"relu\" is not in this program, which has gelu_new"},
        Case{kGpt2, "\"n_inner\": null", R"("scale_attn_by_inverse_layer_idx": true)",
             "scale_attn_by_inverse_layer_idx = true"},
        Case{kGpt2, "\"n_inner\": null", R"("quantization_config": {"bits": 4})",
             "quantization_config = {\"bits\":4}"},
        Case{kGpt2, "\"n_layer\": 2,", "", "has no n_layer"},
        Case{kGpt2, "\"n_embd\": 6", "\"n_embd\": \"x\"", "n_embd is not a whole number"},
        Case{kGpt2, "\"n_head\": 2", "\"n_head\": 4",
             "model.width = 6 is not divisible by model.heads = 4"},
        Case{kLlama, "{\"arch", R"({"attention_bias": true, "arch)", "attention_bias = true"},
        Case{kLlama, "{\"arch", R"({"mlp_bias": true, "arch)", "mlp_bias = true"},
        Case{kLlama, "{\"arch", R"({"hidden_act": "gelu", "arch)", "hidden_act = \"gelu\""},
        Case{kLlama, "{\"arch", R"({"head_dim": 4, "arch)", "head_dim = 4"},
        Case{kLlama, "{\"arch", R"({"sliding_window": 9, "arch)", "sliding_window = 9"},
        Case{kLlama, "\"rope_type\": \"llama3\"", "\"rope_type\": \"yarn\"",
             "rope_type = \"yarn\""},
        Case{kLlama, "\"factor\": 32.0,", "", "has no factor"},
        Case{kLlama, "\"factor\"", "\"partial_rotary_factor\": 0.5, \"factor\"",
             "partial_rotary_factor = 0.5"}}) {
    write_config(c.config, c.from, c.to);
    expect_error(ExitCode::kConfig, c.part, [&] { hugging_face_config(path_); });
  }
  write("config.json", "{");
  expect_error(ExitCode::kData, "config.json: cannot be read", [&] { hugging_face_config(path_); });
  write("config.json", "[]");
  expect_error(ExitCode::kData, "holds no JSON object", [&] { hugging_face_config(path_); });
  write("config.json", std::string(100000, '['));
  expect_error(ExitCode::kData, "nested too deeply", [&] { hugging_face_config(path_); });
  write("config.json", std::string((16 << 20) + 1, ' '));
  expect_error(ExitCode::kData, "has over 16777216 bytes", [&] { hugging_face_config(path_); });
}

TEST_F(Folder, EndTokens) {
  write("config.json", R"({"eos_token_id": 7})");
  EXPECT_EQ(hugging_face_end_tokens(path_), std::vector<int32_t>{7});
  write("generation_config.json", R"({"eos_token_id": [3, 128009]})");
  EXPECT_EQ(hugging_face_end_tokens(path_), (std::vector<int32_t>{3, 128009}));
  write("generation_config.json", "{}");
  EXPECT_TRUE(hugging_face_end_tokens(path_).empty());
  for (const char* wrong : {"\"x\"", "-1", "[1.5]", "4294967296"}) {
    write("generation_config.json", str("{\"eos_token_id\": ", wrong, "}"));
    expect_error(ExitCode::kData, "eos_token_id", [&] { hugging_face_end_tokens(path_); });
  }
}

// A head of its own in the files of a model whose config.json ties it would be lost.
TEST_F(Folder, ATiedHeadThatDiffers) {
  write_config(kGpt2);
  const auto open = [&] { HuggingFaceReader(path_).require_tied(); };
  const std::string refused = ": lm_head.weight is not wte.weight, though config.json ties them";
  write_weights("F32", "transformer.", {{"lm_head.weight", "F32", {11, 6}}});
  open();
  std::fstream(path_ + "/model.safetensors").seekp(-1, std::ios::end) << '\x7f';
  expect_error(ExitCode::kData, refused, open);
}

// Conv1D matrices are transposed: ours [r, c] is theirs [c, r]. Any range of elements can be read.
TEST_F(Folder, TransposedMatrices) {
  write_config(kGpt2);
  write_weights("F32", "transformer.",
                {{"h.0.attn.bias", "F32", {1, 1, 9, 9}},
                 {"h.1.attn.masked_bias", "F32", {}},
                 {"lm_head.weight", "F32", {11, 6}}});
  const HuggingFaceReader reader(path_);
  const float first = firsts_.at("h.1.attn.c_attn.weight");
  int64_t begin = 0;  // row of c_attn, transposed
  for (const std::string name : {"q", "k", "v"}) {
    std::vector<float> whole;
    for (int64_t row = begin; row < begin + 6; ++row) {
      for (int64_t column = 0; column < 6; ++column) {
        whole.push_back(first + static_cast<float>(column * 18 + row));
      }
    }
    begin += 6;
    for (const Range range : {Range{0, 36}, Range{4, 5}, Range{5, 8}, Range{11, 29}, Range{7, 7}}) {
      EXPECT_EQ(read(reader, "param/blocks.1.attn." + name + ".weight", {6, 6}, range),
                std::vector(whole.begin() + range.begin, whole.begin() + range.end));
    }
  }
  EXPECT_EQ(read(reader, "param/wpe", {9, 6}, {53, 54})[0], firsts_.at("wpe.weight") + 53);
  EXPECT_EQ(read(reader, "param/blocks.0.mlp.fc.bias", {24}, {0, 1})[0],
            firsts_.at("h.0.mlp.c_fc.bias"));
  expect_error(ExitCode::kData, "has no param/wpe [8, 6]", [&] {
    reader.require_tensor("param/wpe", {8, 6});
  });
  expect_error(ExitCode::kData, "has no param/head.weight", [&] {
    reader.require_tensor("param/head.weight", {11, 6});
  });
}

// bf16 numbers up to 256 are exact.
TEST_F(Folder, MatricesOfLlama) {
  write_config(kLlama);
  write_weights("BF16");
  const HuggingFaceReader reader(path_);
  const auto part = [&](const std::string& name, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), firsts_.at(name));
    for (float& value : values) {
      value = static_cast<float>(Bf16(value));
    }
    return values;
  };
  const std::vector<float> q = part("model.layers.0.self_attn.q_proj.weight", 64);
  for (const Range range : {Range{0, 64}, Range{30, 50}, Range{63, 64}}) {
    EXPECT_EQ(read(reader, "param/blocks.0.attn.q.weight", {8, 8}, range),
              std::vector(q.begin() + range.begin, q.begin() + range.end));
  }
  for (const std::string name : {"k", "v"}) {
    EXPECT_EQ(read(reader, "param/blocks.0.attn." + name + ".weight", {4, 8}, {0, 32}),
              part("model.layers.0.self_attn." + name + "_proj.weight", 32));
  }
  for (const std::string name : {"gate", "up"}) {
    EXPECT_EQ(read(reader, "param/blocks.0.mlp." + name + ".weight", {5, 8}, {0, 40}),
              part("model.layers.0.mlp." + name + "_proj.weight", 40));
  }
  EXPECT_EQ(read(reader, "param/head.weight", {7, 8}, {0, 56}), part("lm_head.weight", 56));
}

TEST_F(Folder, TensorsAreThoseOfTheModel) {
  write_config(kLlama);
  write_weights("F32", "", {{"model.layers.0.self_attn.q_proj.bias", "F32", {8}}});
  expect_error(ExitCode::kData, "q_proj.bias has no place in the model",
               [&] { HuggingFaceReader reader(path_); });
  write_weights();
  write_config(kLlama, "\"vocab_size\": 7", "\"vocab_size\": 8");
  expect_error(ExitCode::kData, "embed_tokens.weight is [7, 8], its config.json asks for [8, 8]",
               [&] { HuggingFaceReader reader(path_); });
  write_config(kLlama, "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2");
  expect_error(ExitCode::kData, "has no tensor model.layers.1.input_layernorm.weight [8]",
               [&] { HuggingFaceReader reader(path_); });
}

}  // namespace
}  // namespace tandem::testing
