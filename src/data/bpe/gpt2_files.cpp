// The two files of GPT-2's vocabulary as OpenAI published them.
#include <algorithm>
#include <sstream>

#include "src/data/bpe/byte_alphabet.h"
#include "src/data/bpe/json_fields.h"
#include "src/data/bpe/model.h"
#include "src/io/byte_stream.h"

namespace tandem {
namespace {

std::string checked_bytes(std::string_view printed, const std::string& place) {
  std::optional<std::string> bytes = bytes_of_printed(printed);
  if (!bytes) {
    fail_data(place, ": '", printed, "' is not in GPT-2's byte alphabet");
  }
  return *std::move(bytes);
}

void read_encoder(const std::string& path, BpeModel* model) {
  const auto json = nlohmann::json::parse(read_whole_file(path), nullptr, false);
  if (!json.is_object()) {
    fail_data(path, ": not a JSON object of tokens");
  }
  model->pieces.resize(json.size());
  for (const auto& [printed, id] : json.items()) {
    const int32_t place = id_of_json(id, std::ssize(json), str("token '", printed, "'"), path);
    model->pieces[static_cast<size_t>(place)] = checked_bytes(printed, path);
  }
  const auto end_of_text = std::ranges::find(model->pieces, kEndOfText);
  if (end_of_text != model->pieces.end()) {
    model->end_of_text = static_cast<int32_t>(end_of_text - model->pieces.begin());
    model->added = {{.id = *model->end_of_text}};
  }
}

void read_merges(const std::string& path, const TokenIds& ids, BpeModel* model) {
  std::istringstream lines(read_whole_file(path));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || (number == 1 && line.starts_with("#version"))) {
      continue;
    }
    const std::string place = str(path, ":", number);
    const size_t space = line.find(' ');
    if (space == std::string::npos) {
      fail_data(place, ": expected two symbols and a space between them");
    }
    add_merge(checked_bytes(line.substr(0, space), place),
              checked_bytes(line.substr(space + 1), place), ids, place, model);
  }
}

}  // namespace

BpeModel read_gpt2_files(const std::string& folder) {
  const std::string path = folder + "/encoder.json";
  BpeModel model;
  read_encoder(path, &model);
  const auto ids = ordinary_tokens(model, path);
  if (!model.end_of_text) {
    fail_data(path, ": no token ", kEndOfText);
  }
  read_merges(folder + "/vocab.bpe", ids, &model);
  return model;
}

}  // namespace tandem
