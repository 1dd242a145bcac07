// BPE tokenizers in folders and inside HDF5 files.
#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>

#include "src/data/bpe/bpe_tokenizer.h"
#include "src/data/bpe/json_fields.h"
#include "src/io/file.h"

namespace tandem {

std::string read_tokenizer_file(const std::string& path) {
  return read_file(path, file_limit(1024));
}

namespace {

// The object in a file of settings; null when there is no such file.
nlohmann::json optional_settings(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    return nullptr;
  }
  return parse_object(read_tokenizer_file(path), path);
}

// The id of a token by its name in tokenizer.json.
int32_t id_of_name(const BpeModel& model, const std::string& name, const std::string& path) {
  const auto has_name = [&](const AddedToken& token) { return model.pieces[token.id] == name; };
  const auto added = std::ranges::find_if(model.added, has_name);
  if (added != model.added.end()) {
    return added->id;
  }
  const auto ids = ordinary_tokens(model, path);
  const auto found = ids.find(piece_of_printed(model, name).value_or(""));
  if (found == ids.end()) {
    fail_data(path, ": eos_token '", name, "' is not in tokenizer.json");
  }
  return found->second;
}

std::optional<int32_t> read_end_of_text(const BpeModel& model, const std::string& folder) {
  std::string path = folder + "/tokenizer_config.json";
  const auto config = optional_settings(path);
  const nlohmann::json& token = field_or_null(config, "eos_token");
  if (!token.is_null()) {
    const std::string name = token.is_object() ? string_field(token, "content", path)
                                               : string_field(config, "eos_token", path);
    return id_of_name(model, name, path);
  }
  path = folder + "/generation_config.json";
  const auto generation = optional_settings(path);
  const nlohmann::json& id = field_or_null(generation, "eos_token_id");
  if (id.is_null()) {
    return std::nullopt;
  }
  return id_of_json(id.is_array() && !id.empty() ? id[0] : id, std::ssize(model.pieces),
                    "eos_token_id", path);
}

// A tokenizer of single characters as `tandem export` writes it; null for another one.
std::unique_ptr<Tokenizer> read_characters(const nlohmann::json& file, const std::string& path) {
  const nlohmann::json& vocabulary = field_or_null(field_or_null(file, "model"), "vocab");
  if (field_or_null(file, "decoder") != nlohmann::json{{"type", "Fuse"}} ||
      !vocabulary.is_object() || vocabulary.empty() ||
      field_or_null(field_or_null(file, "model"), "merges") != nlohmann::json::array() ||
      std::ranges::any_of(std::array{"normalizer", "pre_tokenizer", "post_processor"},
                          [&](const char* name) { return !field_or_null(file, name).is_null(); })) {
    return nullptr;
  }
  std::vector<int32_t> code_points(vocabulary.size(), -1);
  for (const auto& [name, id] : vocabulary.items()) {
    const int32_t place = id_of_json(id, std::ssize(code_points), str("'", name, "'"), path);
    const Utf8Step step = read_utf8(name + '\0', 0);  // an empty name is no character either
    code_points[place] = step.length == std::ssize(name) ? step.code_point : -1;
  }
  if (code_points[0] < 0 || !std::ranges::is_sorted(code_points, std::less_equal<>())) {
    fail_data(path, ": its tokens are not single characters in the order of their code points");
  }
  return make_char_tokenizer(std::move(code_points));
}

// The id in the attribute end_of_text, which holds none or one.
std::optional<int32_t> stored_end_of_text(const H5Reader& file, const BpeModel& model) {
  const auto ids = file.int_attribute("/tokenizer", "end_of_text");
  const auto size = std::ssize(model.pieces);
  if (ids.size() != 1 || ids[0] < -1 || ids[0] >= size) {
    fail_data(file.path(), ": /tokenizer is damaged: ids outside the vocabulary");
  }
  return ids[0] < 0 ? std::nullopt : std::optional(static_cast<int32_t>(ids[0]));
}

}  // namespace

std::unique_ptr<Tokenizer> load_gpt2_tokenizer(const std::string& folder) {
  return std::make_unique<BpeTokenizer>(read_gpt2_files(folder), "gpt2", folder);
}

std::unique_ptr<Tokenizer> load_hugging_face_tokenizer(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  const nlohmann::json file = parse_object(read_tokenizer_file(path), path);
  if (auto characters = read_characters(file, path)) {
    return characters;
  }
  BpeModel model = model_of_tokenizer_json(file, path);
  model.end_of_text = read_end_of_text(model, folder);
  return std::make_unique<BpeTokenizer>(std::move(model), "bpe", path);
}

// "bpe" is stored as a tokenizer.json, "gpt2" as its pieces and merges.
void BpeTokenizer::save_vocabulary(H5Writer* file) const {
  file->set_attribute("/tokenizer", "end_of_text",
                      std::vector<int64_t>{model_.end_of_text.value_or(-1)});
  std::vector<uint8_t> bytes;
  if (kind_ != "gpt2") {
    const std::string json = definition();
    bytes.assign(json.begin(), json.end());
    file->write_all<uint8_t>("/tokenizer/tokenizer_json", bytes);
    return;
  }
  std::vector<int64_t> ends;
  for (const std::string& piece : model_.pieces) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    ends.push_back(std::ssize(bytes));
  }
  file->write_all<uint8_t>("/tokenizer/piece_bytes", bytes);
  file->write_all<int64_t>("/tokenizer/piece_ends", ends);
  std::vector<int32_t> merges;
  for (const BpeMerge& merge : model_.merges) {
    merges.insert(merges.end(), {merge.left, merge.right, merge.result});
  }
  file->write_all<int32_t>("/tokenizer/merges", merges);
}

std::unique_ptr<Tokenizer> read_bpe_tokenizer(const H5Reader& file) {
  const auto bytes = file.read_all<uint8_t>("/tokenizer/tokenizer_json");
  const std::string place = file.path() + ": /tokenizer/tokenizer_json";
  BpeModel model = parse_tokenizer_json(std::string(bytes.begin(), bytes.end()), place);
  model.end_of_text = stored_end_of_text(file, model);
  return std::make_unique<BpeTokenizer>(std::move(model), "bpe", place);
}

std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const H5Reader& file) {
  const auto bytes = file.read_all<uint8_t>("/tokenizer/piece_bytes");
  const auto ends = file.read_all<int64_t>("/tokenizer/piece_ends");
  const auto merges = file.read_all<int32_t>("/tokenizer/merges");
  const std::string place = file.path() + ": /tokenizer";
  BpeModel model;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    if (end < begin || end > std::ssize(bytes)) {
      fail_data(place, "/piece_ends is damaged");
    }
    model.pieces.emplace_back(bytes.begin() + begin, bytes.begin() + end);
    begin = end;
  }
  model.end_of_text = stored_end_of_text(file, model);
  if (!model.end_of_text) {
    fail_data(place, " is damaged: no end of text");
  }
  model.added = {{.id = *model.end_of_text}};
  const auto size = std::ssize(ends);
  const auto is_id = [&](int64_t id) { return id >= 0 && id < size; };
  if (merges.size() % 3 != 0 || !std::all_of(merges.begin(), merges.end(), is_id)) {
    fail_data(place, " is damaged: ids outside the vocabulary");
  }
  for (size_t i = 0; i < merges.size(); i += 3) {
    model.merges.push_back({merges[i], merges[i + 1], merges[i + 2]});
  }
  return std::make_unique<BpeTokenizer>(std::move(model), "gpt2", place);
}

}  // namespace tandem
