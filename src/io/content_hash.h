// XXH3 hashes: they identify the content of a dataset, and find equal records.
#pragma once

#include <xxhash.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/range.h"
#include "src/io/file.h"

namespace tandem {

// 128 bits, so that equal hashes mean equal content for any dataset that fits a disk.
struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const Hash128&) const = default;
  std::string hex() const;  // 32 digits
};

struct Hash128Hasher {
  size_t operator()(const Hash128& hash) const { return hash.low; }
};

Hash128 hash_of(const void* bytes, int64_t count);
inline Hash128 hash_of(std::string_view text) { return hash_of(text.data(), std::ssize(text)); }

// Hashes bytes that come in pieces; the cuts between the pieces do not matter.
class ContentHash {
 public:
  ContentHash();
  void add(const void* bytes, int64_t count);
  void add(std::string_view text) { add(text.data(), std::ssize(text)); }
  Hash128 digest() const;

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

// The hash of bytes 0 to `end` of a file, without those in the ranges.
Hash128 hash_outside(const FileReader& file, std::vector<Range> ranges, int64_t end);

}  // namespace tandem
