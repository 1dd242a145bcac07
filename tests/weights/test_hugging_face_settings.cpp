// What the JSON files of a Hugging Face model say.
#include <random>

#include "tests/weights/hugging_face_folder.h"

namespace tandem::testing {
namespace {

using HuggingFaceSettings = HuggingFaceFolder;

TEST_F(HuggingFaceSettings, SettingsOfGpt2) {
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

TEST_F(HuggingFaceSettings, SettingsOfLlama) {
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

// kLlama as another architecture, with these keys before its own.
std::string family(const std::string& architecture, const std::string& keys = "") {
  const std::string all(kLlama);
  return "{\"architectures\": [\"" + architecture + "\"]" + keys + all.substr(all.find(']') + 1);
}

TEST_F(HuggingFaceSettings, HeadsAndBiasesOfTheFamily) {
  const auto expect = [&](const char* head_width, const char* qkv_bias, const char* all_biases) {
    const Settings want{
        {"head_width", head_width}, {"qkv_bias", qkv_bias}, {"attention_bias", all_biases}};
    EXPECT_EQ(settings(want), want);
  };
  write_config(kLlama);
  expect("0", "false", "false");
  write_config(family("LlamaForCausalLM", R"(, "head_dim": 6, "attention_bias": true)"));
  expect("6", "false", "true");
  write_config(family("Qwen2ForCausalLM", R"(, "head_dim": null, "attention_bias": true)"));
  expect("0", "true", "false");
  write_config(family("MistralForCausalLM", R"(, "head_dim": 4)"));
  expect("4", "false", "false");
  write_config(family("MistralForCausalLM", R"(, "head_dim": 2)"));
  expect("0", "false", "false");  // the default, of runs that began before there was the setting
  write_config(family("Qwen3ForCausalLM", R"(, "attention_bias": true)"));
  expect("128", "false", "true");
  const Settings normed{{"qk_norm", "true"}};
  EXPECT_EQ(settings(normed), normed);
}

TEST_F(HuggingFaceSettings, WindowsOfTheFamily) {
  const auto expect = [&](const std::string& architecture, const std::string& keys,
                          const std::string& window) {
    write_config(family(architecture, keys));
    const Settings want{{"sliding_window", window}};
    EXPECT_EQ(settings(want), want) << architecture << keys;
  };
  expect("MistralForCausalLM", "", "4096");
  expect("MistralForCausalLM", R"(, "sliding_window": null)", "0");
  expect("MistralForCausalLM", R"(, "sliding_window": 9)", "9");
  const std::string used = R"(, "sliding_window": 9, "use_sliding_window": true)";
  expect("Qwen2ForCausalLM", R"(, "sliding_window": 9)", "0");
  expect("Qwen2ForCausalLM", R"(, "sliding_window": 9, "use_sliding_window": false)", "0");
  expect("Qwen2ForCausalLM", used + R"(, "max_window_layers": 0)", "9");
  expect("Qwen2ForCausalLM", used + R"(, "max_window_layers": 1)", "0");  // of one layer
  expect("Qwen2ForCausalLM", used + R"(, "layer_types": ["sliding_attention"])", "9");
  expect("Qwen2ForCausalLM", used + R"(, "layer_types": ["full_attention"])", "0");
  expect("Qwen2ForCausalLM", R"(, "layer_types": ["full_attention"])", "0");
  expect("Qwen2ForCausalLM", R"(, "sliding_window": null, "use_sliding_window": true)", "0");
}

// The published models have as many parameters as their publishers say.
TEST_F(HuggingFaceSettings, PublishedModels) {
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
  write("config.json", R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
    "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
    "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "use_cache": true, "use_mrope": false, "use_sliding_window": false,
    "vocab_size": 151936})");
  EXPECT_EQ(parameters(), 494'032'768);
  write("config.json", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
    "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})");
  EXPECT_EQ(parameters(), 596'049'920);
  write("config.json", R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
    "vocab_size": 32000})");
  EXPECT_EQ(parameters(), 7'241'732'096);
  write("config.json", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 2048,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 22,
    "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "float32",
    "use_cache": true, "vocab_size": 32000})");
  EXPECT_EQ(parameters(), 1'100'048'384);
}

// Whatever stands in config.json is read or refused in one line; nothing else is thrown.
TEST_F(HuggingFaceSettings, AnyConfigIsReadOrRefused) {
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
      hugging_face_tokens(path_, "eos_token_id");
      ++read;
    } catch (const Error& error) {
      ++refused;
      ASSERT_EQ(error.code(), ExitCode::kData) << error.what() << "\n" << text;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(read, 10);
}

// Both forms of transformers 4 are read: the newer one, and the one before it.
TEST_F(HuggingFaceSettings, RotaryFrequenciesOfOlderFiles) {
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
  // transformers 5 takes rope_scaling first, other programs rope_parameters.
  const std::string both = head + R"("rope_parameters": {"rope_type": "linear", "factor": 2.0},)";
  write("config.json", both + R"("rope_scaling": {"factor": 2.0}})");
  EXPECT_EQ(frequencies().factor, 2);
  for (const char* scaling : {R"({"factor": 4.0})", R"({"factor": 2.0, "type": "yarn"})"}) {
    write("config.json", both + R"("rope_scaling": )" + scaling + "}");
    expect_error(ExitCode::kData, "rope_parameters and rope_scaling differ in", frequencies);
  }
}

TEST_F(HuggingFaceSettings, WhatOurModelsLackIsAnError) {
  struct Case {
    std::string config;
    const char *from, *to, *part;
  };
  const std::string kQwen2 = family("Qwen2ForCausalLM", ", \"use_sliding_window\": true");
  for (const Case& c :
       {Case{kGpt2, "GPT2LMHeadModel", "BertModel", "architectures = [\"BertModel\"]"},
        Case{kGpt2, "\"n_inner\": null", R"("activation_function": "relu")",
             "activation_function = \"relu\" is not in this program, which has gelu_new"},
        Case{kGpt2, "\"n_inner\": null", R"("scale_attn_by_inverse_layer_idx": true)",
             "scale_attn_by_inverse_layer_idx = true"},
        Case{kGpt2, "\"n_inner\": null", R"("quantization_config": {"bits": 4})",
             "quantization_config = {\"bits\":4}"},
        Case{kGpt2, "\"n_layer\": 2,", "", "has no n_layer"},
        Case{kLlama, "{\"arch", R"({"mlp_bias": true, "arch)", "mlp_bias = true"},
        Case{kLlama, "{\"arch", R"({"is_causal": false, "arch)", "is_causal = false"},
        Case{kLlama, "{\"arch", R"({"hidden_act": "gelu", "arch)", "hidden_act = \"gelu\""},
        Case{kLlama, "{\"arch", R"({"sliding_window": 9, "arch)", "sliding_window = 9"},
        Case{kQwen2, "1,", R"(2, "layer_types": ["full_attention", "sliding_attention"],)",
             "layer_types = [\"full_attention\",\"sliding_attention\"] is not in this program"},
        Case{family("MistralForCausalLM"), "1,", R"(1, "layer_types": ["full_attention"],)",
             "layer_types = [\"full_attention\"] is not in this program"},
        Case{kQwen2, "1,", R"(2, "max_window_layers": 1,)", "max_window_layers = 1"},
        Case{kQwen2, "true", "true", "has no max_window_layers"},
        Case{kLlama, "\"rope_type\": \"llama3\"", "\"rope_type\": \"yarn\"",
             "rope_parameters.rope_type = \"yarn\""},
        Case{kLlama, "\"factor\": 32.0,", "", "has no rope_parameters.factor"},
        Case{kLlama, "\"factor\"", "\"partial_rotary_factor\": 0.5, \"factor\"",
             "rope_parameters.partial_rotary_factor = 0.5"}}) {
    write_config(c.config, c.from, c.to);
    expect_error(ExitCode::kData, c.part, [&] { hugging_face_config(path_); });
  }
}

// What no program takes is said in the words of config.json.
TEST_F(HuggingFaceSettings, WrongValuesAreErrors) {
  struct Case {
    const char *from, *to, *said;
  };
  const auto expect = [&](const std::string& config, std::initializer_list<Case> cases) {
    for (const Case& c : cases) {
      write_config(config, c.from, c.to);
      expect_error(ExitCode::kData, path_ + "/config.json: " + c.said,
                   [&] { hugging_face_settings(path_); });
    }
  };
  expect(kGpt2,
         {{"\"n_embd\": 6", R"("n_embd": "x")", "n_embd = \"x\" must be a whole number from 1"},
          {"\"n_head\": 2", "\"n_head\": 4", "n_embd = 6 is not divisible by n_head = 4"},
          {"\"n_inner\": null", "\"n_inner\": 0", "n_inner = 0 must be"},
          {"9,", "-9,", "n_positions = -9 must be"},
          {"[\"GPT2LMHeadModel\"]", "7", "architectures = 7 is not in this program"},
          {"\"architectures\": [\"GPT2LMHeadModel\"]", "\"model_type\": 7",
           "model_type = 7 is not in this program"},
          {"\"n_inner\": null", "\"activation_function\": 3",
           "activation_function = 3 is not in this program, which has gelu_new"}});
  const char* const kHeads = "\"num_attention_heads\": 4, \"num_key_value_heads\": 2";
  const char* const kLayers = "\"num_hidden_layers\": 1";
  expect(
      kLlama,
      {{"{", "{\"head_dim\": 0, ", "head_dim = 0 must be a whole number from 1"},
       {"{", "{\"head_dim\": 7, ", "head_dim = 7 must be even"},
       {"{", "{\"head_dim\": 1073741824, ", "head_dim = 1073741824 must be a whole number in [0, "},
       {kHeads, "\"num_attention_heads\": 5",
        "hidden_size = 8 is not divisible by num_attention_heads = 5"},
       {kHeads, "\"num_attention_heads\": 8", "hidden_size / num_attention_heads = 1 must be even"},
       {"heads\": 2", "heads\": 3",
        "num_attention_heads = 4 is not divisible by num_key_value_heads = 3"},
       {kLayers, "\"num_hidden_layers\": 0", "num_hidden_layers = 0 must be"},
       {kLayers, "\"num_hidden_layers\": -1", "num_hidden_layers = -1 must be"},
       {kLayers, "\"num_hidden_layers\": 10001", "num_hidden_layers = 10001 must be"},
       {"size\": 7", "size\": -5", "vocab_size = -5 must be"},
       {"size\": 7", "size\": \"7\"", "vocab_size = \"7\" must be"},
       {"size\": 5", "size\": 0", "intermediate_size = 0 must be"},
       {"1e-6", "-1", "rms_norm_eps = -1 must be a number in [1e-12, 1]"},
       {"1e-6", "\"1e-6\"", "rms_norm_eps = \"1e-6\" must be a number"},
       {"{", "{\"attention_bias\": \"maybe\", ",
        "attention_bias = \"maybe\" must be true or false"},
       {"{", "{\"mlp_bias\": \"maybe\", ",
        "mlp_bias = \"maybe\" is not in this program, which has false"},
       {"\"rope_type\": \"llama3\"", "\"rope_type\": 3",
        "rope_parameters.rope_type = 3 is not in this program, which has default, linear"},
       {"\"rope_parameters\": {", "\"rope_parameters\": 5, \"other\": {",
        "rope_parameters = 5 must be an object"},
       {"\"factor\"", "\"partial_rotary_factor\": \"half\", \"factor\"",
        "rope_parameters.partial_rotary_factor = \"half\" is not in this program"},
       {"{", "{\"tie_word_embeddings\": 1, ", "tie_word_embeddings = 1 must be true or false"},
       {"\"factor\": 32.0", "\"factor\": -1",
        "rope_parameters.factor = -1 must be a number in [1, "},
       {"factor\": 4.0", "factor\": 1.0",
        "rope_parameters.high_freq_factor = 1 must be above rope_parameters.low_freq_factor = 1"},
       {"{", R"({"layer_types": ["sliding_attention"], )",
        "layer_types = [\"sliding_attention\"]"}});
  expect(family("MistralForCausalLM", ", \"sliding_window\": -1"),
         {{"", "", "sliding_window = -1 must be a whole number from 1"}});
  for (const char* name : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    const char* const kUnused = "layer_types = [\"sliding_attention\"] must be full_attention";
    expect(family(name),
           {{"]", R"(], "use_sliding_window": "yes")", "use_sliding_window = \"yes\" must be true"},
            {"]", R"(], "use_sliding_window": 1)", "use_sliding_window = 1 must be true or false"},
            {"]", R"(], "sliding_window": -4)", "sliding_window = -4 must be"},
            {"]", R"(], "layer_types": [])", "layer_types = [] must be full_attention or sliding_"},
            {"]", R"(], "layer_types": "x")", "layer_types = \"x\" must be full_attention or"},
            {"]", R"(], "layer_types": ["full_attention", "full_attention"])", "layer_types = [\""},
            {"]", R"(], "layer_types": ["linear_attention"])", "layer_types = [\"linear_attention"},
            {"]", R"(], "layer_types": ["sliding_attention"])", kUnused}});
    expect(family(name, R"(, "use_sliding_window": true)"),
           {{"]", R"(], "layer_types": ["chunked_attention"])", "layer_types = [\"chunked_"},
            {"]", R"(], "sliding_window": null, "layer_types": ["sliding_attention"])", kUnused},
            {"]", R"(], "max_window_layers": -1)", "max_window_layers = -1 must be"}});
  }
}

TEST_F(HuggingFaceSettings, FilesThatAreNoObjectsAreErrors) {
  write("config.json", "{");
  expect_error(ExitCode::kData, "config.json: cannot be read", [&] { hugging_face_config(path_); });
  write("config.json", "[]");
  expect_error(ExitCode::kData, "holds no JSON object", [&] { hugging_face_config(path_); });
  write("config.json", std::string(100000, '['));
  expect_error(ExitCode::kData, "nested too deeply", [&] { hugging_face_config(path_); });
  write("config.json", std::string((16 << 20) + 1, ' '));
  expect_error(ExitCode::kData, "has over 16777216 bytes", [&] { hugging_face_config(path_); });
}

TEST_F(HuggingFaceSettings, EndTokens) {
  write("config.json", R"({"eos_token_id": 7})");
  EXPECT_EQ(hugging_face_tokens(path_, "eos_token_id"), std::vector<int32_t>{7});
  write("generation_config.json", R"({"eos_token_id": [3, 128009]})");
  EXPECT_EQ(hugging_face_tokens(path_, "eos_token_id"), (std::vector<int32_t>{3, 128009}));
  write("generation_config.json", "{}");
  EXPECT_TRUE(hugging_face_tokens(path_, "eos_token_id").empty());
  for (const char* wrong : {"\"x\"", "-1", "[1.5]", "4294967296"}) {
    write("generation_config.json", str("{\"eos_token_id\": ", wrong, "}"));
    expect_error(ExitCode::kData, "eos_token_id",
                 [&] { hugging_face_tokens(path_, "eos_token_id"); });
  }
}

}  // namespace
}  // namespace tandem::testing
