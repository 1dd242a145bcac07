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
  int32_t rank;
  int64_t at;
  int32_t left, right, result;

  auto operator<=>(const Candidate&) const = default;
};

BytePairMerger::BytePairMerger(const std::vector<BpeMerge>& merges) {
  rules_.reserve(merges.size());
  for (const BpeMerge& merge : merges) {
    const auto rank = static_cast<int32_t>(rules_.size());
    rules_.emplace(pair_key(merge.left, merge.right), Rule{rank, merge.result});
  }
}

void BytePairMerger::merge(std::vector<int32_t>* symbols) const {
  constexpr int32_t kGone = -1;
  std::vector<int32_t>& ids = *symbols;
  const auto count = std::ssize(ids);
  std::vector<int64_t> previous(ids.size());
  std::vector<int64_t> next(ids.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](int64_t at) {
    if (at < 0 || next[at] >= count) {
      return;
    }
    const int32_t left = ids[at], right = ids[next[at]];
    if (const auto rule = rules_.find(pair_key(left, right)); rule != rules_.end()) {
      candidates.push({rule->second.rank, at, left, right, rule->second.result});
    }
  };
  std::iota(previous.begin(), previous.end(), int64_t{-1});
  std::iota(next.begin(), next.end(), int64_t{1});
  for (int64_t at = 0; at + 1 < count; ++at) {
    consider(at);
  }
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const auto at = static_cast<size_t>(best.at);
    const auto after = static_cast<size_t>(next[at]);
    // One of the two may have been merged with another neighbour since.
    if (ids[at] != best.left || static_cast<int64_t>(after) >= count || ids[after] != best.right) {
      continue;
    }
    ids[at] = best.result;
    ids[after] = kGone;
    next[at] = next[after];
    if (next[at] < count) {
      previous[next[at]] = best.at;
    }
    consider(previous[at]);
    consider(best.at);
  }
  std::erase(ids, kGone);
}

}  // namespace tandem
