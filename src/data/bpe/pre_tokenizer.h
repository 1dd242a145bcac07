// The second step of BPE: cuts text into words, by the component "pre_tokenizer" of a
// tokenizer.json.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/bpe/regex.h"

namespace tandem {

// GPT-2's: the pattern of OpenAI's encoder.py, by which every byte belongs to exactly one word.
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
inline constexpr std::string_view kGpt2PreTokenizer =
    R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";

// Throws kData above 4 MiB: merging takes up to 36 bytes of memory for each byte of a word, and no
// language has such words.
void check_length(std::string_view word);

// One thread at a time may use a PreTokenizer.
class PreTokenizer {
 public:
  // `json`: Split, Digits, Metaspace or a Sequence of them, with ByteLevel at its end where tokens
  // are bytes; null where they are not, for a text that is one word. Throws kData, beginning with
  // `place`, and naming what is not supported.
  PreTokenizer(std::string_view json, const std::string& place, bool of_bytes = true);

  // Calls `use` for each word of valid UTF-8, in order. `begins`: the text is not the rest of one.
  using Use = std::function<void(std::string_view)>;
  void for_each_word(std::string_view text, const Use& use, bool begins = true) const {
    run(0, text, begins, use);
  }

  // What becomes of a match of the expression: a word of its own, nothing, or a part of a longer
  // word.
  enum class Behaviour : uint8_t {
    kIsolated,
    kRemoved,
    kMergedWithPrevious,
    kMergedWithNext,
    kContiguous,
  };

  // Where a space is put before what does not begin with one.
  enum class Spaced : uint8_t { kAlways, kAtBeginning, kNever };

 private:
  struct Step {
    std::optional<Regex> regex;  // nothing: writes spaces in another way
    Behaviour behaviour;
    bool invert;        // what does not match counts as a match, and the other way round
    std::string space;  // written for each " "
    Spaced spaced;
  };
  struct Reader;

  void run(size_t index, std::string_view text, bool begins, const Use& use) const;

  std::vector<Step> steps_;
};

}  // namespace tandem
