#include "src/weights/hugging_face/tokenizer_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/core/visible_text.h"
#include "src/data/bpe/bpe_tokenizer.h"
#include "src/data/bpe/json_fields.h"
#include "src/data/chat_template.h"
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
  fail_data(file.path(), ": a tokenizer of kind ", tokenizer.kind(),
            " is not exported; char, bytes, gpt2 and bpe are");
}

// How tokenizer.json spells each token, added ones too, by its id.
std::map<int64_t, std::string> names_by_id(const nlohmann::json& json) {
  std::map<int64_t, std::string> names;
  for (const auto& [name, id] : field_or_null(field_or_null(json, "model"), "vocab").items()) {
    if (id.is_number_integer()) {
      names[id.get<int64_t>()] = name;
    }
  }
  for (const auto& token : field_or_null(json, "added_tokens")) {
    const auto& id = field_or_null(token, "id");
    const auto& name = field_or_null(token, "content");
    if (id.is_number_integer() && name.is_string()) {
      names[id.get<int64_t>()] = name.get<std::string>();
    }
  }
  return names;
}

void write_json(const std::string& path, const Json& json) {
  replace_file(path, json.dump(2) + "\n");
}

}  // namespace

TextTokens write_tokenizer_files(const H5Reader& file, int64_t context, const std::string& folder) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(file);
  write_json(folder + "/tokenizer.json", json_of(file, *tokenizer));
  Json settings = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"model_max_length", context},
                   {"clean_up_tokenization_spaces", false}};
  TextTokens tokens;
  if (const auto end = tokenizer->end_of_text()) {
    tokens.before = tokens.ends = {*end};
    settings["eos_token"] = tokenizer->piece(*end);
  }
  if (const auto before = tokenizer->before_text(); !before.empty()) {
    tokens.before = {before[0]};
  }
  if (!tokens.before.empty()) {
    settings["bos_token"] = tokenizer->piece(tokens.before[0]);
  }
  write_json(folder + "/tokenizer_config.json", settings);
  if (!tokenizer->chat_template.empty()) {
    const auto end = tokenizer->special_token(chat_end(tokenizer->chat_template));
    if (end && std::ranges::count(tokens.ends, *end) == 0) {
      tokens.ends.push_back(*end);  // of an answer; the other one ends a text
    }
    replace_file(folder + "/chat_template.jinja", chat_jinja(tokenizer->chat_template));
  }
  return tokens;
}

void require_same_tokens(const std::string& folder, const std::string& data) {
  const std::string path = folder + "/tokenizer.json";
  if (!std::filesystem::exists(path)) {
    return;
  }
  const H5Reader file(data);
  const auto ours = names_by_id(json_of(file, *load_tokenizer(file)));
  const auto theirs = names_by_id(parse_object(read_tokenizer_file(path), path));
  for (const auto& [id, name] : ours) {
    const auto same = theirs.find(id);
    if (same == theirs.end() || same->second != name) {
      fail_data(data, " has another tokenizer than ", folder, ": token ", id, " is '",
                visible(name), "', and ",
                same == theirs.end() ? "the model has none" : "the model's is '",
                same == theirs.end() ? "" : visible(same->second) + "'",
                "; prepare the data with --tokenizer ", folder);
    }
  }
}

}  // namespace tandem
