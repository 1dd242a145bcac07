#include <nlohmann/json.hpp>
#include <set>

#include "layers/models/resnet.h"
#include "src/io/safetensors/safetensors.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/hugging_face/writer.h"
#include "tests/io/checkpoint_folder.h"
#include "tests/support/set_config.h"

namespace tandem::testing {
namespace {

using Json = nlohmann::json;
using Names = std::set<std::string>;

const ForeignNames& names_of(const std::string& kind) {
  Config config;
  set(config, "model.kind", kind);
  return *config.model->foreign_names();
}

class HuggingFaceWriter : public Checkpoint {
 protected:
  void SetUp() override {
    Checkpoint::SetUp();
    folder_ = root_ + "/exported";
    fs::create_directory(folder_);
  }

  // Saves the parameters and statistics of a model, with values of their own. Two ranks write: each
  // has a part of every tensor.
  std::string save_of(Model& model) {
    std::vector<Slab> whole;
    for (const Parameter* parameter : parameters_of(model)) {
      for (const Piece& piece : pieces_of(*parameter)) {
        whole.push_back({"param/" + piece.name, piece.slice, 0, {}});
      }
    }
    for (const RunningStatistics* statistics : model.statistics()) {
      whole.push_back({"stat/" + statistics->name, Shape{2, statistics->channels}, 0, {}});
    }
    std::vector<Slab> parts[2];
    for (size_t i = 0; i < whole.size(); ++i) {
      const int64_t elements = whole[i].slice.elements(), half = elements / 3;
      whole[i].data = random_values(elements, 100 + i);
      ours_[whole[i].name] = whole[i].data;
      for (const Range part : {Range{0, half}, Range{half, elements}}) {
        parts[part.begin > 0].push_back({whole[i].name, whole[i].slice, part.begin,
                                         whole[i].data.slice(part.begin, part.count())});
      }
    }
    const std::string partial = begin_checkpoint(checkpoints_, 1);
    std::vector<FileEntry> files;
    files.reserve(2);
    for (int rank = 0; rank < 2; ++rank) {
      files.push_back(write_rank_file(partial + "/" + rank_file_name(rank), parts[rank]));
    }
    Manifest manifest;
    manifest.step = 1;
    manifest.world_size = 2;
    return commit_checkpoint(partial, manifest, files);
  }

  // All values of an exported tensor, whose shape must be this.
  std::vector<float> theirs(const std::string& name, const std::vector<int64_t>& shape) const {
    const SafetensorsReader reader(folder_);
    const SafetensorsEntry* entry = reader.find(name);
    EXPECT_NE(entry, nullptr) << name;
    std::vector<float> values;
    if (entry != nullptr) {
      EXPECT_EQ(entry->shape, shape) << name;
      values.resize(static_cast<size_t>(entry->elements()));
      reader.read(name, 0, values);
    }
    return values;
  }
  std::vector<float> all(const std::string& name) const {
    const auto values = ours_.at(name).as<float>();
    return {values.begin(), values.end()};
  }
  // The matrices stand one below the other before they are transposed.
  std::vector<float> transposed(const std::vector<std::string>& names, int64_t rows,
                                int64_t columns) const {
    std::vector<float> values;
    for (const std::string& name : names) {
      std::ranges::copy(all("param/" + name), std::back_inserter(values));
    }
    std::vector<float> result;
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = 0; row < rows; ++row) {
        result.push_back(values[static_cast<size_t>(row * columns + column)]);
      }
    }
    return result;
  }
  Names names() const {
    const SafetensorsReader reader(folder_);
    Names found;
    for (const SafetensorsEntry& tensor : reader.tensors()) {
      found.insert(tensor.name);
    }
    return found;
  }
  Json json(const std::string& file) const { return Json::parse(read_file(folder_ + "/" + file)); }

  std::string folder_;
  std::map<std::string, Tensor> ours_;
};

TEST_F(HuggingFaceWriter, Gpt2) {
  const TransformerConfig config = resolved({.vocab = 11,
                                             .context = 5,
                                             .positions = 7,
                                             .layers = 2,
                                             .heads = 2,
                                             .width = 6,
                                             .dropout = 0.25,
                                             .norm_epsilon = 1e-6});
  Transformer model(config);
  write_hugging_face(CheckpointReader(save_of(model)), model, names_of("gpt"),
                     {.shard_bytes = 1000, .around_text = {.before = {2}, .ends = {3, 5}}},
                     folder_);

  Names expected = {"transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.weight",
                    "transformer.ln_f.bias"};
  for (const std::string layer : {"transformer.h.0.", "transformer.h.1."}) {
    for (const std::string part :
         {"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"}) {
      expected.insert({layer + part + ".weight", layer + part + ".bias"});
    }
  }
  EXPECT_EQ(names(), expected);
  EXPECT_TRUE(fs::exists(folder_ + "/model.safetensors.index.json"));
  EXPECT_EQ(theirs("transformer.wte.weight", {11, 6}), all("param/wte"));
  EXPECT_EQ(theirs("transformer.wpe.weight", {7, 6}), all("param/wpe"));
  EXPECT_EQ(theirs("transformer.h.1.ln_2.weight", {6}), all("param/blocks.1.ln_2.gain"));
  EXPECT_EQ(theirs("transformer.ln_f.bias", {6}), all("param/ln_f.bias"));
  EXPECT_EQ(
      theirs("transformer.h.0.attn.c_attn.weight", {6, 18}),
      transposed({"blocks.0.attn.q.weight", "blocks.0.attn.k.weight", "blocks.0.attn.v.weight"}, 18,
                 6));
  EXPECT_EQ(theirs("transformer.h.1.attn.c_proj.weight", {6, 6}),
            transposed({"blocks.1.attn.proj.weight"}, 6, 6));
  EXPECT_EQ(theirs("transformer.h.1.mlp.c_fc.weight", {6, 24}),
            transposed({"blocks.1.mlp.fc.weight"}, 24, 6));
  EXPECT_EQ(theirs("transformer.h.1.mlp.c_proj.weight", {24, 6}),
            transposed({"blocks.1.mlp.proj.weight"}, 6, 24));
  EXPECT_EQ(theirs("transformer.h.0.mlp.c_fc.bias", {24}), all("param/blocks.0.mlp.fc.bias"));

  EXPECT_EQ(json("config.json"), Json::parse(R"({
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 11, "n_positions": 7,
    "n_embd": 6, "n_layer": 2, "n_head": 2, "n_inner": 24, "activation_function": "gelu_new",
    "resid_pdrop": 0.25, "embd_pdrop": 0.25, "attn_pdrop": 0.0, "layer_norm_epsilon": 1e-6,
    "tie_word_embeddings": true, "bos_token_id": 2, "eos_token_id": [3, 5], "torch_dtype": "float32"})"));
  EXPECT_EQ(json("generation_config.json"),
            Json::parse(R"({"bos_token_id": 2, "eos_token_id": [3, 5]})"));
}

// Matrices are transposed in blocks of 2^20 elements: this one has one and a part.
TEST_F(HuggingFaceWriter, MatricesLargerThanABlock) {
  const TransformerConfig config =
      resolved({.vocab = 3, .context = 2, .layers = 1, .heads = 2, .width = 520});
  Transformer model(config);
  write_hugging_face(CheckpointReader(save_of(model)), model, names_of("gpt"),
                     {.shard_bytes = 1 << 30}, folder_);
  EXPECT_TRUE(theirs("transformer.h.0.mlp.c_fc.weight", {520, 2080}) ==
              transposed({"blocks.0.mlp.fc.weight"}, 2080, 520));
}

TEST_F(HuggingFaceWriter, Llama) {
  const TransformerConfig config = resolved({.style = kLlama,
                                             .vocab = 11,
                                             .context = 5,
                                             .layers = 1,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .width = 8,
                                             .ffn_width = 12,
                                             .tie_embeddings = false,
                                             .rope = {.theta = 5e5,
                                                      .factor = 8,
                                                      .original_context = 32,
                                                      .low_freq_factor = 2,
                                                      .high_freq_factor = 4}});
  Transformer model(config);
  write_hugging_face(CheckpointReader(save_of(model)), model, names_of("llama"), {}, folder_);

  const std::string layer = "model.layers.0.";
  EXPECT_EQ(names(),
            (Names{"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
                   layer + "input_layernorm.weight", layer + "post_attention_layernorm.weight",
                   layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight",
                   layer + "self_attn.v_proj.weight", layer + "self_attn.o_proj.weight",
                   layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight",
                   layer + "mlp.down_proj.weight"}));
  for (const std::string name : {"q", "k", "v"}) {
    const int64_t rows = name == "q" ? 8 : 4;
    EXPECT_EQ(theirs(layer + "self_attn." + name + "_proj.weight", {rows, 8}),
              all("param/blocks.0.attn." + name + ".weight"));
  }
  for (const std::string name : {"gate", "up"}) {
    EXPECT_EQ(theirs(layer + "mlp." + name + "_proj.weight", {12, 8}),
              all("param/blocks.0.mlp." + name + ".weight"));
  }
  EXPECT_EQ(theirs(layer + "mlp.down_proj.weight", {8, 12}), all("param/blocks.0.mlp.down.weight"));
  EXPECT_EQ(theirs("lm_head.weight", {11, 8}), all("param/head.weight"));
  EXPECT_EQ(theirs("model.norm.weight", {8}), all("param/norm_f.gain"));

  EXPECT_EQ(json("config.json"), Json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 11,
    "max_position_embeddings": 5, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "hidden_act": "silu",
    "attention_bias": false, "mlp_bias": false, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": null,
    "torch_dtype": "float32"})"));
}

// What is written is what is read again, and the architecture has it.
TEST_F(HuggingFaceWriter, FamiliesOfLlama) {
  struct Case {
    const char* architecture;
    int64_t head_width;
    bool qkv_bias, attention_bias;
    int64_t sliding_window;
    bool qk_norm = false;
    int64_t heads = 4;
  };
  const auto write = [&](const Case& of) {
    Transformer model(resolved({.style = kLlama,
                                .vocab = 11,
                                .context = 9,
                                .layers = 2,
                                .heads = of.heads,
                                .kv_heads = of.heads == 3 ? 1 : 2,
                                .head_width = of.head_width,
                                .width = 8,
                                .qkv_bias = of.qkv_bias,
                                .attention_bias = of.attention_bias,
                                .qk_norm = of.qk_norm,
                                .sliding_window = of.sliding_window}));
    write_hugging_face(CheckpointReader(save_of(model)), model, names_of("llama"), {}, folder_);
  };
  for (const Case& of : {Case{"LlamaForCausalLM", 6, false, false, 0},
                         {"LlamaForCausalLM", 2, false, true, 0},
                         {"LlamaForCausalLM", 2, true, true, 0},
                         {"Qwen2ForCausalLM", 4, true, false, 0},
                         {"Qwen2ForCausalLM", 2, true, false, 5},
                         {"MistralForCausalLM", 6, false, false, 5},
                         {"MistralForCausalLM", 6, false, false, 0, false, 3},
                         {"Qwen3ForCausalLM", 6, false, false, 0, true},
                         {"Qwen3ForCausalLM", 2, false, true, 5, true}}) {
    SCOPED_TRACE(of.architecture);
    write(of);
    EXPECT_EQ(json("config.json").at("architectures"), Json::array({of.architecture}));
    const TransformerConfig read = *hugging_face_config(folder_).model->transformer();
    EXPECT_EQ(read.head_layout().width, of.head_width);
    EXPECT_EQ(read.sliding_window, of.sliding_window);
    EXPECT_EQ(read.has_qkv_bias(), of.qkv_bias || of.attention_bias);
    EXPECT_EQ(read.attention_bias, of.attention_bias);
    EXPECT_EQ(read.qk_norm, of.qk_norm);
    const std::string attention = "model.layers.1.self_attn.";
    EXPECT_EQ(theirs(attention + "q_proj.weight", {of.heads * of.head_width, 8}),
              all("param/blocks.1.attn.q.weight"));
    EXPECT_EQ(theirs(attention + "o_proj.weight", {8, of.heads * of.head_width}),
              all("param/blocks.1.attn.proj.weight"));
    EXPECT_EQ(names().count(attention + "q_proj.bias"), read.has_qkv_bias());
    EXPECT_EQ(names().count(attention + "o_proj.bias"), of.attention_bias);
    EXPECT_EQ(names().count(attention + "k_norm.weight"), of.qk_norm);
    if (of.qk_norm) {
      EXPECT_EQ(theirs(attention + "q_norm.weight", {of.head_width}),
                all("param/blocks.1.attn.q_norm.gain"));
      EXPECT_EQ(theirs(attention + "k_norm.weight", {of.head_width}),
                all("param/blocks.1.attn.k_norm.gain"));
    }
    if (read.has_qkv_bias()) {
      EXPECT_EQ(theirs(attention + "v_proj.bias", {2 * of.head_width}),
                all("param/blocks.1.attn.v.bias"));
    }
  }
  for (const auto& [of, words] :
       {std::pair{Case{"", 2, false, true, 5}, "model.attention_bias and model.sliding_window"},
        {Case{"", 6, false, true, 0, false, 3}, "a model.width that model.heads does not divide"},
        {Case{"", 2, true, false, 0, true}, "model.qk_norm and model.qkv_bias"}}) {
    try {
      write(of);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      expect_mentions(error.what(), {words});
    }
  }
}

TEST_F(HuggingFaceWriter, RoundsToTheTypeThatIsAskedFor) {
  const TransformerConfig config =
      resolved({.vocab = 7, .context = 4, .layers = 1, .heads = 1, .width = 6});
  Transformer model(config);
  const CheckpointReader checkpoint(save_of(model));
  write_hugging_face(checkpoint, model, names_of("gpt"), {.dtype = DType::kBf16}, folder_);
  std::vector<float> rounded = all("param/wte");
  for (float& value : rounded) {
    value = Bf16(value);
  }
  EXPECT_EQ(theirs("transformer.wte.weight", {7, 6}), rounded);
  EXPECT_EQ(SafetensorsReader(folder_).tensors()[0].dtype, "BF16");
  EXPECT_EQ(json("config.json").at("torch_dtype"), "bfloat16");
}

TEST_F(HuggingFaceWriter, AnotherModelIsRefused) {
  Transformer model({.vocab = 7, .context = 4, .layers = 1, .heads = 1, .width = 6});
  const CheckpointReader checkpoint(save_of(model));
  Transformer other({.vocab = 7, .context = 4, .layers = 2, .heads = 1, .width = 6});
  expect_mentions(
      data_error([&] { write_hugging_face(checkpoint, other, names_of("gpt"), {}, folder_); }),
      {"blocks.1.ln_1"});
}

TEST_F(HuggingFaceWriter, ResNet) {
  const std::unique_ptr<Classifier> model = make_resnet({.depth = 8, .classes = 4});
  write_torchvision(CheckpointReader(save_of(*model)), names_of("resnet"), {}, folder_);

  Names expected = {"conv1.weight", "fc.weight", "fc.bias"};
  for (const std::string norm : {"bn1", "layer1.0.bn1", "layer1.0.bn2", "layer2.0.bn1",
                                 "layer2.0.bn2", "layer3.0.bn1", "layer3.0.bn2"}) {
    expected.insert(
        {norm + ".weight", norm + ".bias", norm + ".running_mean", norm + ".running_var"});
  }
  for (const std::string layer : {"layer1.0", "layer2.0", "layer3.0"}) {
    expected.insert({layer + ".conv1.weight", layer + ".conv2.weight"});
  }
  EXPECT_EQ(names(), expected);
  // [out, height, width, in] -> [out, in, height, width]
  const std::vector<float> conv = theirs("layer2.0.conv1.weight", {32, 16, 3, 3});
  const std::vector<float> ours = all("param/stages.1.0.conv_1.weight");
  for (size_t out = 0; out < 32; ++out) {
    for (size_t in = 0; in < 16; ++in) {
      for (size_t pixel = 0; pixel < 9; ++pixel) {
        ASSERT_EQ(conv[(out * 16 + in) * 9 + pixel], ours[(out * 9 + pixel) * 16 + in]);
      }
    }
  }
  const std::vector<float> statistics = all("stat/stages.2.0.bn_2");
  EXPECT_EQ(theirs("layer3.0.bn2.running_mean", {64}),
            std::vector<float>(statistics.begin(), statistics.begin() + 64));
  EXPECT_EQ(theirs("layer3.0.bn2.running_var", {64}),
            std::vector<float>(statistics.begin() + 64, statistics.end()));
  EXPECT_EQ(theirs("bn1.weight", {16}), all("param/stem.bn.gain"));
  EXPECT_EQ(theirs("fc.weight", {4, 64}), all("param/head.weight"));
}

}  // namespace
}  // namespace tandem::testing
