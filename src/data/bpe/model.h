// All that a BPE tokenizer is, as data, and the files it is read from.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/data/bpe/merger.h"
#include "src/data/bpe/pre_tokenizer.h"

namespace tandem {

// A token with a meaning of its own, such as the end of a text. If `special`, text never becomes
// it. Otherwise it is found in text before everything else.
struct AddedToken {
  int32_t id = 0;
  bool special = true;
  bool in_vocabulary = true;  // if not special, bytes and merges may make it too
  bool normalized = false;    // looked for after all that are not
  bool single_word = false, lstrip = false, rstrip = false;  // of special ones: only kept
};

// GPT-2's name of the token that ends a text.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

struct BpeModel {
  std::vector<std::string> pieces;  // the bytes of each token, by id; with `byte_fallback` its name
  std::vector<BpeMerge> merges;     // by rank
  std::vector<AddedToken> added;    // in the order of the file
  bool ignore_merges = false;       // a word that is a token becomes it, whatever its merges
  // As SentencePiece does it (Kudo and Richardson 2018): merges begin with characters. Of one that
  // is no token each byte becomes a token, whose name is <0x00> to <0xFF>, and a space is named
  // "▁".
  bool byte_fallback = false;
  bool strips_space = false;        // decoding leaves out a space that a text begins with
  std::string normalizer = "null";  // JSON
  std::string pre_tokenizer{kGpt2PreTokenizer};  // JSON
  std::string post_processor = "null";           // JSON
  std::vector<int32_t> before, after;  // what `post_processor` puts around a text (BOS, EOS)
  std::optional<int32_t> end_of_text;
};

// The ids of tokens, by their bytes.
using TokenIds = std::unordered_map<std::string_view, int32_t>;

// The ids of all tokens that text may become by bytes and merges: those in the vocabulary that are
// not special. Throws kData, beginning with `place`, when a token repeats another one or a byte has
// no token.
TokenIds ordinary_tokens(const BpeModel& model, const std::string& place);

// The piece of the token for one byte, 0 <= byte < 256.
std::string byte_piece(const BpeModel& model, int byte);

// How a tokenizer.json spells a piece, and the piece that it spells; nothing when it spells none.
std::string printed_piece(const BpeModel& model, std::string_view piece);
std::optional<std::string> piece_of_printed(const BpeModel& model, std::string_view printed);

// Adds a merge, given by the pieces of its two symbols. Throws kData, beginning with `place`, when
// one of the symbols or the result is no token.
void add_merge(std::string_view left, std::string_view right, const TokenIds& ids,
               const std::string& place, BpeModel* model);

// OpenAI's `encoder.json` and `vocab.bpe` (tokenizer.h).
BpeModel read_gpt2_files(const std::string& folder);

// The content of a tokenizer.json, all but `end_of_text`, as text or as the object in it. Both
// throw kData, beginning with `place`.
BpeModel parse_tokenizer_json(std::string_view text, const std::string& place);
BpeModel model_of_tokenizer_json(const nlohmann::json& object, const std::string& place);

// The content of a file of a tokenizer. Throws kData if it is larger than any should be.
std::string read_tokenizer_file(const std::string& path);

// The content of a tokenizer.json that parse_tokenizer_json, and `tokenizers`, read as this model.
std::string tokenizer_json(const BpeModel& model);

}  // namespace tandem
