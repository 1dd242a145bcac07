#include "src/train/hugging_face/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/data/bpe/bpe_tokenizer.h"
#include "src/io/file.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

BpeModel bytes_model() {
  BpeModel model;
  for (int byte = 0; byte < 256; ++byte) {
    model.pieces.emplace_back(1, static_cast<char>(byte));
  }
  model.pre_tokenizer =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false})";
  return model;
}

// Its pieces are characters, not bytes.
Json char_json(const Tokenizer& tokenizer) {
  Json json = Json::parse(tokenizer_json(BpeModel()));
  json["pre_tokenizer"] = nullptr;
  json["decoder"] = {{"type", "Fuse"}};
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    json["model"]["vocab"][std::string(tokenizer.piece(id))] = id;
  }
  return json;
}

Json json_of(const H5Reader& file, const Tokenizer& tokenizer) {
  if (const auto* bpe = dynamic_cast<const BpeTokenizer*>(&tokenizer)) {
    return Json::parse(tokenizer_json(bpe->model()));
  }
  if (tokenizer.kind() == "bytes") {
    return Json::parse(tokenizer_json(bytes_model()));
  }
  if (tokenizer.kind() == "char") {
    return char_json(tokenizer);
  }
  fail(ExitCode::kData, str(file.path(), ": a tokenizer of kind ", tokenizer.kind(),
                            " is not exported; char, bytes, gpt2 and bpe are"));
}

void write_json(const std::string& path, const Json& json) {
  replace_file(path, json.dump(2) + "\n");
}

}  // namespace

std::optional<int32_t> write_tokenizer_files(const H5Reader& file, int64_t context,
                                             const std::string& folder) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(file);
  write_json(folder + "/tokenizer.json", json_of(file, *tokenizer));
  Json settings = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"model_max_length", context},
                   {"clean_up_tokenization_spaces", false}};
  const std::optional<int32_t> end = tokenizer->end_of_text();
  if (end) {
    settings["eos_token"] = tokenizer->piece(*end);
    const auto before = tokenizer->before_text();
    settings["bos_token"] = tokenizer->piece(before.empty() ? *end : before[0]);
  }
  write_json(folder + "/tokenizer_config.json", settings);
  return end;
}

}  // namespace tandem
