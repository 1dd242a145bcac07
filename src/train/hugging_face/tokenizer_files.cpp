#include "src/train/hugging_face/tokenizer_files.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "src/core/error.h"
#include "src/data/tokenizer.h"
#include "src/io/file.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

// Each byte as the character that stands for it in byte-level BPE: printable Latin-1 for itself,
// the others from U+0100 on (GPT-2's encoder.py, bytes_to_unicode).
std::string printed(std::string_view bytes) {
  static const std::vector<std::string> kCharacters = [] {
    std::vector<std::string> characters;
    int32_t next = 256;
    for (int32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      append_utf8(printable ? byte : next++, &characters.emplace_back());
    }
    return characters;
  }();
  std::string text;
  for (const char byte : bytes) {
    text += kCharacters[static_cast<uint8_t>(byte)];
  }
  return text;
}

// Merges as pairs of printed pieces, by rank. The ids were checked when the tokenizer was loaded.
Json merges_of(const H5Reader& file, const Tokenizer& tokenizer) {
  Json pairs = Json::array();
  const std::vector<int32_t> merges = file.read_all<int32_t>("/tokenizer/merges");
  for (size_t i = 0; i + 2 < merges.size(); i += 3) {
    pairs.push_back({printed(tokenizer.piece(merges[i])), printed(tokenizer.piece(merges[i + 1]))});
  }
  return pairs;
}

void write_json(const std::string& path, const Json& json) {
  replace_file(path, json.dump(2) + "\n");
}

}  // namespace

std::optional<int32_t> write_tokenizer_files(const H5Reader& file, int64_t context,
                                             const std::string& folder) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(file);
  const bool is_char = tokenizer->kind() == "char", has_words = tokenizer->kind() == "gpt2";
  if (!is_char && !has_words && tokenizer->kind() != "bytes") {
    fail(ExitCode::kData, str(file.path(), ": a tokenizer of kind ", tokenizer->kind(),
                              " is not exported; char, bytes and gpt2 are"));
  }
  const std::optional<int32_t> end = tokenizer->end_of_text();
  Json vocabulary = Json::object();
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const std::string piece(tokenizer->piece(id));
    vocabulary[is_char || id == end ? piece : printed(piece)] = id;
  }
  Json added = Json::array();
  Json settings = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"model_max_length", context},
                   {"clean_up_tokenization_spaces", false}};
  if (end) {
    const std::string content(tokenizer->piece(*end));
    added.push_back({{"id", *end},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    settings["bos_token"] = content;
    settings["eos_token"] = content;
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", has_words}};
  write_json(folder + "/tokenizer.json",
             {{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", nullptr},
              {"pre_tokenizer", is_char ? Json(nullptr) : byte_level},
              {"post_processor", nullptr},
              {"decoder", is_char ? Json{{"type", "Fuse"}} : byte_level},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"vocab", vocabulary},
                {"merges", has_words ? merges_of(file, *tokenizer) : Json::array()}}}});
  write_json(folder + "/tokenizer_config.json", settings);
  return end;
}

}  // namespace tandem
