// GPT-2's tokenizer: text is cut into words by a Unicode pattern, and the bytes of each word are
// merged by rank. The ids are those of OpenAI's encoder.py with the same two files.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "src/core/error.h"
#include "src/data/bpe.h"
#include "src/data/tokenizer.h"
#include "src/data/word_splitter.h"
#include "src/io/byte_stream.h"

namespace tandem {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr size_t kLongestCachedWord = 64;
constexpr size_t kCachedWords = size_t{1} << 18;

struct Vocabulary {
  std::vector<std::string> pieces;  // bytes of each token, by id
  std::vector<BpeMerge> merges;     // by rank
  int32_t end_of_text = -1;
};

// A hash that accepts string_view, so that looking up a word in the cache copies nothing.
struct WordHash {
  using is_transparent = void;
  size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
};

class Gpt2Tokenizer : public Tokenizer {
 public:
  explicit Gpt2Tokenizer(Vocabulary vocabulary)
      : vocabulary_(std::move(vocabulary)), merger_(vocabulary_.merges) {
    byte_ids_.fill(-1);
    for (size_t id = 0; id < vocabulary_.pieces.size(); ++id) {
      const std::string& piece = vocabulary_.pieces[id];
      if (piece.size() == 1) {
        byte_ids_[static_cast<uint8_t>(piece[0])] = static_cast<int32_t>(id);
      }
    }
  }

  std::string_view kind() const override { return "gpt2"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(vocabulary_.pieces.size()); }
  std::optional<int32_t> end_of_text() const override { return vocabulary_.end_of_text; }
  std::string_view piece(int32_t token) const override {
    return vocabulary_.pieces[static_cast<size_t>(token)];
  }

  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<int32_t>* tokens) override {
    std::string repaired;
    if (valid_utf8_prefix(text) != text.size()) {
      repaired = text;
      repair_utf8(&repaired);
      text = repaired;
    }
    for (size_t at = 0; at < text.size();) {
      const size_t end = splitter_.word_end(text, at);
      encode_word(text.substr(at, end - at), tokens);
      at = end;
    }
  }

  void save(H5Writer* file, const std::string& group) const override {
    file->create_group(group);
    file->set_attribute(group, "kind", std::string(kind()));
    file->set_attribute(group, "end_of_text", std::vector<int64_t>{vocabulary_.end_of_text});
    std::vector<uint8_t> bytes;
    std::vector<int64_t> ends;
    for (const std::string& piece : vocabulary_.pieces) {
      bytes.insert(bytes.end(), piece.begin(), piece.end());
      ends.push_back(static_cast<int64_t>(bytes.size()));
    }
    file->write_all<uint8_t>(group + "/piece_bytes", bytes);
    file->write_all<int64_t>(group + "/piece_ends", ends);
    std::vector<int32_t> merges;
    for (const BpeMerge& merge : vocabulary_.merges) {
      merges.insert(merges.end(), {merge.left, merge.right, merge.result});
    }
    file->write_all<int32_t>(group + "/merges", merges);
  }

 private:
  void encode_word(std::string_view word, std::vector<int32_t>* tokens) {
    if (const auto found = cache_.find(word); found != cache_.end()) {
      tokens->insert(tokens->end(), found->second.begin(), found->second.end());
      return;
    }
    std::vector<int32_t> symbols;
    symbols.reserve(word.size());
    for (const char byte : word) {
      symbols.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    }
    merger_.merge(&symbols);
    tokens->insert(tokens->end(), symbols.begin(), symbols.end());
    if (word.size() <= kLongestCachedWord) {
      if (cache_.size() >= kCachedWords) {
        cache_.clear();
      }
      cache_.emplace(word, std::move(symbols));
    }
  }

  Vocabulary vocabulary_;
  BytePairMerger merger_;
  WordSplitter splitter_;
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<std::string, std::vector<int32_t>, WordHash, std::equal_to<>> cache_;
};

// The published files write each byte as one printable character: printable Latin-1 bytes stand for
// themselves, the other bytes are U+0100 and up (encoder.py, bytes_to_unicode).
std::unordered_map<int32_t, char> byte_of_printed() {
  std::unordered_map<int32_t, char> bytes;
  int32_t next = 256;
  for (int32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                           (byte >= 0xAE && byte <= 0xFF);
    bytes.emplace(printable ? byte : next++, static_cast<char>(byte));
  }
  return bytes;
}

std::string bytes_of_printed(std::string_view printed, const std::unordered_map<int32_t, char>& map,
                             const std::string& place) {
  std::string bytes;
  for (size_t at = 0; at < printed.size();) {
    const Utf8Step step = read_utf8(printed, at);
    const auto found = map.find(step.code_point);
    if (found == map.end()) {
      fail(ExitCode::kData, str(place, ": '", printed, "' is not in GPT-2's byte alphabet"));
    }
    bytes.push_back(found->second);
    at += static_cast<size_t>(step.length);
  }
  return bytes;
}

std::unordered_map<std::string, int32_t> ids_of_pieces(const std::vector<std::string>& pieces,
                                                       const std::string& place) {
  std::unordered_map<std::string, int32_t> ids;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].empty() || !ids.emplace(pieces[id], static_cast<int32_t>(id)).second) {
      fail(ExitCode::kData, str(place, ": token id ", id, " is missing or repeats another token"));
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (!ids.contains(std::string(1, static_cast<char>(byte)))) {
      fail(ExitCode::kData, str(place, ": no token for byte ", byte));
    }
  }
  return ids;
}

std::vector<std::string> read_encoder(const std::string& path) {
  const std::string text = read_whole_file(path);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) {
    fail(ExitCode::kData, str(path, ": not a JSON object of tokens"));
  }
  const auto map = byte_of_printed();
  std::vector<std::string> pieces(json.size());
  for (const auto& [printed, id] : json.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() >= static_cast<int64_t>(pieces.size())) {
      fail(ExitCode::kData,
           str(path, ": token '", printed, "' has no id from 0 to ", pieces.size() - 1));
    }
    pieces[id.get<size_t>()] = bytes_of_printed(printed, map, path);
  }
  return pieces;
}

std::vector<BpeMerge> read_merges(const std::string& path,
                                  const std::unordered_map<std::string, int32_t>& ids) {
  const std::string text = read_whole_file(path);
  const auto map = byte_of_printed();
  std::vector<BpeMerge> merges;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.empty() || (number == 1 && line.starts_with("#version"))) {
      continue;
    }
    const std::string place = str(path, ":", number);
    const size_t space = line.find(' ');
    if (space == std::string::npos) {
      fail(ExitCode::kData, str(place, ": expected two symbols and a space between them"));
    }
    const std::string left = bytes_of_printed(line.substr(0, space), map, place);
    const std::string right = bytes_of_printed(line.substr(space + 1), map, place);
    if (!ids.contains(left) || !ids.contains(right) || !ids.contains(left + right)) {
      fail(ExitCode::kData, str(place,
                                ": this merge has no token in encoder.json; do the two files "
                                "belong together?"));
    }
    merges.push_back({ids.at(left), ids.at(right), ids.at(left + right)});
  }
  return merges;
}

}  // namespace

std::unique_ptr<Tokenizer> load_gpt2_tokenizer(const std::string& folder) {
  const std::string encoder_path = folder + "/encoder.json";
  Vocabulary vocabulary;
  vocabulary.pieces = read_encoder(encoder_path);
  const auto ids = ids_of_pieces(vocabulary.pieces, encoder_path);
  const auto end_of_text = ids.find(std::string(kEndOfText));
  if (end_of_text == ids.end()) {
    fail(ExitCode::kData, str(encoder_path, ": no token ", kEndOfText));
  }
  vocabulary.end_of_text = end_of_text->second;
  vocabulary.merges = read_merges(folder + "/vocab.bpe", ids);
  return std::make_unique<Gpt2Tokenizer>(std::move(vocabulary));
}

std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const H5Reader& file, const std::string& group) {
  const auto bytes = file.read_all<uint8_t>(group + "/piece_bytes");
  const auto ends = file.read_all<int64_t>(group + "/piece_ends");
  const auto merges = file.read_all<int32_t>(group + "/merges");
  const auto end_of_text = file.int_attribute(group, "end_of_text");
  const std::string place = str(file.path(), ": ", group);
  Vocabulary vocabulary;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    if (end < begin || end > static_cast<int64_t>(bytes.size())) {
      fail(ExitCode::kData, str(place, "/piece_ends is damaged"));
    }
    vocabulary.pieces.emplace_back(bytes.begin() + begin, bytes.begin() + end);
    begin = end;
  }
  ids_of_pieces(vocabulary.pieces, place);
  const auto size = static_cast<int64_t>(ends.size());
  const auto is_id = [&](int64_t id) { return id >= 0 && id < size; };
  if (merges.size() % 3 != 0 || !std::all_of(merges.begin(), merges.end(), is_id) ||
      end_of_text.size() != 1 || !is_id(end_of_text[0])) {
    fail(ExitCode::kData, str(place, " is damaged: ids outside the vocabulary"));
  }
  for (size_t i = 0; i < merges.size(); i += 3) {
    vocabulary.merges.push_back({merges[i], merges[i + 1], merges[i + 2]});
  }
  vocabulary.end_of_text = static_cast<int32_t>(end_of_text[0]);
  return std::make_unique<Gpt2Tokenizer>(std::move(vocabulary));
}

}  // namespace tandem
