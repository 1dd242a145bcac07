#include "src/io/content_hash.h"

#include <algorithm>
#include <iomanip>

#include "src/core/error.h"

namespace tandem {

std::string Hash128::hex() const {
  return str(std::hex, std::setfill('0'), std::setw(16), high, std::setw(16), low);
}

Hash128 hash_of(const void* bytes, int64_t count) {
  const XXH128_hash_t hash = XXH3_128bits(bytes, static_cast<size_t>(count));
  return {hash.high64, hash.low64};
}

ContentHash::ContentHash() : state_(XXH3_createState()) { XXH3_128bits_reset(state_.get()); }

void ContentHash::add(const void* bytes, int64_t count) {
  XXH3_128bits_update(state_.get(), bytes, static_cast<size_t>(count));
}

Hash128 ContentHash::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {hash.high64, hash.low64};
}

Hash128 hash_outside(const FileReader& file, std::vector<Range> ranges, int64_t end) {
  constexpr int64_t kChunk = int64_t{1} << 20;  // bytes read at once
  std::vector<char> buffer(kChunk);
  ContentHash hash;
  ranges.push_back({end, end});
  std::ranges::sort(ranges, {}, &Range::begin);
  int64_t at = 0;
  for (const Range& range : ranges) {
    while (at < range.begin) {
      const int64_t count = std::min(kChunk, range.begin - at);
      file.read(at, count, buffer.data());
      hash.add(buffer.data(), count);
      at += count;
    }
    at = std::max(at, range.end);
  }
  return hash.digest();
}

}  // namespace tandem
