#include "src/data/bpe/trainer.h"

#include <algorithm>
#include <array>
#include <queue>
#include <ranges>
#include <unordered_set>
#include <utility>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/data/bpe/byte_alphabet.h"

namespace tandem {
namespace {

using Pair = std::pair<int32_t, int32_t>;

Pair pair_of(uint64_t key) {
  return {static_cast<int32_t>(key >> 32), static_cast<int32_t>(key & 0xFFFFFFFF)};
}

// Keys are ids, whose low bits alone would fill few buckets.
struct PairHash {
  size_t operator()(uint64_t key) const { return (key ^ (key >> 29)) * 0x9E3779B97F4A7C15u; }
};

struct PairState {
  uint64_t key;
  int64_t count;                   // in the whole text
  std::vector<int32_t> new_words;  // in which it came to stand by the last merge
};

// A pair that may be merged next. Its count may be out of date when its turn comes.
struct Candidate {
  int64_t count;
  uint64_t key;
  size_t number;               // of the pair
  std::vector<int32_t> words;  // in which it stood when the candidate was made, rising

  // Of two candidates the more frequent one comes first, then the one with the smaller ids.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : key > other.key;
  }
};

class Trainer {
 public:
  Trainer(const WordCounts& counts, int64_t vocab_size)
      : vocab_size_(static_cast<size_t>(vocab_size)) {
    add_bytes();
    for (const auto& [word, count] : counts) {
      words_.push_back(
          mapped(word, [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; }));
      counts_.push_back(count);
    }
  }

  BpeModel run() {
    count_pairs();
    while (model_.pieces.size() < vocab_size_ && !queue_.empty()) {
      Candidate best = std::move(const_cast<Candidate&>(queue_.top()));  // popped at once
      queue_.pop();
      const int64_t count = pairs_[best.number].count;
      if (count != best.count) {
        best.count = count;
        queue_.push(std::move(best));
        continue;
      }
      if (count < 1) {
        break;
      }
      merge(best);
    }
    keep_last_of_equal_merges();
    return std::move(model_);
  }

 private:
  void add_bytes() {
    model_.pieces.emplace_back(kEndOfText);
    model_.added = {{.id = 0}};
    model_.end_of_text = 0;
    std::vector<std::pair<std::string, std::string>> alphabet;  // printed forms, in their order
    for (int byte = 0; byte < 256; ++byte) {
      const std::string letter(1, static_cast<char>(byte));
      alphabet.emplace_back(printed_form(letter), letter);
    }
    std::ranges::sort(alphabet);
    for (const auto& [printed, letter] : alphabet) {
      const auto id = static_cast<int32_t>(model_.pieces.size());
      byte_ids_[static_cast<uint8_t>(letter[0])] = id;
      ids_.emplace(letter, id);
      model_.pieces.push_back(letter);
    }
  }

  void count_pairs() {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (size_t at = 0; at + 1 < words_[i].size(); ++at) {
        change(i, {words_[i][at], words_[i][at + 1]}, 1);
      }
    }
    queue_new_pairs();
  }

  // Pairs have become more or fewer by `by` in each word like words_[word].
  void change(size_t word, Pair pair, int64_t by) {
    const uint64_t key = pair_key(pair.first, pair.second);
    const auto [found, is_new] = pair_numbers_.emplace(key, pairs_.size());
    if (is_new) {
      pairs_.push_back({key, 0, {}});
    }
    PairState& state = pairs_[found->second];
    state.count += by * counts_[word];
    const auto number = static_cast<int32_t>(word);
    if (by > 0 && (state.new_words.empty() || state.new_words.back() != number)) {
      if (state.new_words.empty()) {
        changed_.push_back(found->second);
      }
      state.new_words.push_back(number);
    }
  }

  void queue_new_pairs() {
    for (const size_t number : changed_) {
      PairState& state = pairs_[number];
      std::vector<int32_t> words = std::exchange(state.new_words, {});
      if (state.count > 0) {
        queue_.push({state.count, state.key, number, std::move(words)});
      }
    }
    changed_.clear();
  }

  // The count of the merged pair itself stays, as in `tokenizers`: another merge may give a token
  // that exists already, and with it such a pair again.
  void merge(const Candidate& best) {
    const Pair pair = pair_of(best.key);
    const std::string piece = model_.pieces[pair.first] + model_.pieces[pair.second];
    const auto [found, is_new] = ids_.emplace(piece, static_cast<int32_t>(model_.pieces.size()));
    if (is_new) {
      model_.pieces.push_back(piece);
    }
    model_.merges.push_back({pair.first, pair.second, found->second});
    for (const int32_t word : best.words) {
      merge_in_word(static_cast<size_t>(word), pair, found->second);
    }
    queue_new_pairs();
  }

  void merge_in_word(size_t word, Pair pair, int32_t result) {
    std::vector<int32_t>& symbols = words_[word];
    size_t size = 0;  // of what is done
    for (size_t at = 0; at < symbols.size(); ++at) {
      if (symbols[at] != pair.first || at + 1 == symbols.size() || symbols[at + 1] != pair.second) {
        symbols[size++] = symbols[at];
        continue;
      }
      if (size > 0) {
        change(word, {symbols[size - 1], pair.first}, -1);
        change(word, {symbols[size - 1], result}, 1);
      }
      ++at;
      if (at + 1 < symbols.size()) {
        change(word, {pair.second, symbols[at + 1]}, -1);
        change(word, {result, symbols[at + 1]}, 1);
      }
      symbols[size++] = result;
    }
    symbols.resize(size);
  }

  void keep_last_of_equal_merges() {
    std::unordered_set<uint64_t, PairHash> later;
    std::vector<BpeMerge> kept;
    for (const BpeMerge& merge : model_.merges | std::views::reverse) {
      if (later.insert(pair_key(merge.left, merge.right)).second) {
        kept.push_back(merge);
      }
    }
    model_.merges.assign(kept.rbegin(), kept.rend());
  }

  size_t vocab_size_;
  BpeModel model_;
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<std::string, int32_t> ids_;  // of tokens that merges may give
  std::vector<std::vector<int32_t>> words_;       // as symbols
  std::vector<int64_t> counts_;                   // of words
  std::unordered_map<uint64_t, size_t, PairHash> pair_numbers_;
  std::vector<PairState> pairs_;  // by number
  std::vector<size_t> changed_;   // pairs that have new words
  std::priority_queue<Candidate> queue_;
};

}  // namespace

BpeModel train_bpe(const WordCounts& counts, int64_t vocab_size) {
  require(vocab_size >= kSmallestVocabulary, "BPE: a vocabulary of ", vocab_size,
          " has no room for the bytes");
  return Trainer(counts, vocab_size).run();
}

}  // namespace tandem
