// Trains byte-level BPE (Sennrich et al. 2016): counts the words of a text, and then merges the
// most frequent pair of neighbours again and again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/data/bpe/model.h"

namespace tandem {

// How often each word of GPT-2's pattern stands in a text.
using WordCounts = std::unordered_map<std::string, int64_t>;

// Counts the words of texts on several threads; their number changes no result.
class WordCounter {
 public:
  // Holds less than `counted_together` bytes of text; once there are as many, they are counted.
  explicit WordCounter(int threads, size_t counted_together = size_t{32} << 20)
      : counted_together_(counted_together), shares_(static_cast<size_t>(threads)) {}

  // Valid UTF-8. A text shares no word with the one before it. Throws kData for a text whose words
  // are too long, maybe not before the texts after it.
  void add(std::string_view text);

  // Takes what can be counted by itself from the beginning of a long text: about 4 MiB.
  static std::string_view take_share(std::string_view* text);

  WordCounts finish();

 private:
  void count(std::string_view last);  // the texts held, and this one

  size_t counted_together_;
  std::vector<WordCounts> shares_;  // one for each thread
  std::vector<std::string> texts_;  // not counted yet
  size_t bytes_ = 0;                // of them
};

inline constexpr int64_t kSmallestVocabulary = 257;

// A tokenizer of `vocab_size` tokens, at least kSmallestVocabulary; of fewer when every word has
// become one token before. The ids: <|endoftext|>, the 256 bytes in the order of their printed
// forms, and the results of the merges in their order, each of the most frequent pair, and of
// several the one with the smallest ids. These are the merges and ids of BpeTrainer in Hugging
// Face's `tokenizers` with the same alphabet and special token.
BpeModel train_bpe(const WordCounts& counts, int64_t vocab_size);

}  // namespace tandem
