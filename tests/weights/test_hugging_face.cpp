// The weights of models in folders as Hugging Face keeps them, made here by our writer.
#include "tests/weights/hugging_face_folder.h"

namespace tandem::testing {
namespace {

using HuggingFace = HuggingFaceFolder;

// A head of its own in the files of a model whose config.json ties it would be lost.
TEST_F(HuggingFace, ATiedHeadThatDiffers) {
  write_config(kGpt2);
  const auto open = [&] { HuggingFaceReader(path_).require_tied(); };
  const std::string refused = ": lm_head.weight is not wte.weight, though config.json ties them";
  write_weights("F32", "transformer.", {{"lm_head.weight", "F32", {11, 6}}});
  open();
  std::fstream(path_ + "/model.safetensors").seekp(-1, std::ios::end) << '\x7f';
  expect_error(ExitCode::kData, refused, open);
}

// Conv1D matrices are transposed: ours [r, c] is theirs [c, r]. Any range of elements can be read.
TEST_F(HuggingFace, TransposedMatrices) {
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
TEST_F(HuggingFace, MatricesOfLlama) {
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

TEST_F(HuggingFace, TensorsAreThoseOfTheModel) {
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