// Byte pair encoding: merges neighbouring symbols by rank (Sennrich et al. 2016).
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace tandem {

// One merge rule; its rank is its place in the list.
struct BpeMerge {
  int32_t left, right, result;
};

// Two symbols as one number.
inline uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

class BytePairMerger {
 public:
  explicit BytePairMerger(const std::vector<BpeMerge>& merges);

  size_t size() const { return ranks_.size(); }  // of different pairs

  // Merges the symbols of one word, fewer than 2^31, until no rule applies. Each step applies the
  // rule of the lowest rank, at its leftmost place. O(n log n), so that even a word of a million
  // letters is fast, in at most 36 bytes for each symbol.
  void merge(std::vector<int32_t>* symbols) const;

 private:
  struct Candidate;

  std::vector<BpeMerge> merges_;                 // by rank
  std::unordered_map<uint64_t, int32_t> ranks_;  // key: pair_key
};

}  // namespace tandem
