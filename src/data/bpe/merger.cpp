#include "src/data/bpe/merger.h"

#include <compare>
#include <cstddef>
#include <functional>
#include <numeric>
#include <queue>

namespace tandem {

// A possible merge of the symbol at `at` with the next one. It may be out of date when its turn
// comes.
struct BytePairMerger::Candidate {
  int32_t rank, at;

  auto operator<=>(const Candidate&) const = default;
};

BytePairMerger::BytePairMerger(const std::vector<BpeMerge>& merges) : merges_(merges) {
  ranks_.reserve(merges.size());
  for (const BpeMerge& merge : merges) {
    ranks_.emplace(pair_key(merge.left, merge.right), static_cast<int32_t>(&merge - merges.data()));
  }
}

void BytePairMerger::merge(std::vector<int32_t>* symbols) const {
  constexpr int32_t kGone = -1;
  std::vector<int32_t>& ids = *symbols;
  const auto count = static_cast<int32_t>(ids.size());
  std::vector<int32_t> previous(ids.size()), next(ids.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](int32_t at) {
    if (at < 0 || next[at] >= count) {
      return;
    }
    const auto rank = ranks_.find(pair_key(ids[at], ids[next[at]]));
    if (rank != ranks_.end()) {
      candidates.push({rank->second, at});
    }
  };
  std::iota(previous.begin(), previous.end(), -1);
  std::iota(next.begin(), next.end(), 1);
  for (int32_t at = 0; at + 1 < count; ++at) {
    consider(at);
  }
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const BpeMerge& merge = merges_[best.rank];
    const int32_t at = best.at, after = next[at];
    // One of the two may have been merged with another neighbour since.
    if (ids[at] != merge.left || after >= count || ids[after] != merge.right) {
      continue;
    }
    ids[at] = merge.result;
    ids[after] = kGone;
    next[at] = next[after];
    if (next[at] < count) {
      previous[next[at]] = at;
    }
    consider(previous[at]);
    consider(at);
  }
  std::erase(ids, kGone);
}

}  // namespace tandem
