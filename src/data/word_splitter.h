// GPT-2's first step: cuts text into words with the pattern of OpenAI's encoder.py,
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Every byte of a text belongs to exactly one word.
#pragma once

#include <memory>
#include <string_view>

namespace tandem {

class WordSplitter {
 public:
  WordSplitter();
  ~WordSplitter();

  // End of the word that begins at `at` (at < text.size()) of valid UTF-8.
  size_t word_end(std::string_view text, size_t at) const;

 private:
  struct Pattern;
  std::unique_ptr<Pattern> pattern_;
};

}  // namespace tandem
