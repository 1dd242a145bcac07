// Takes the bytes of an input one after the other, as numbers and texts. Zeros follow their end.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace tandem::fuzz {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  bool empty() const { return at_ == end_; }
  uint8_t byte() { return empty() ? 0 : *at_++; }
  size_t below(size_t limit) { return byte() % limit; }

  // Small ones, those where types end, and others.
  int64_t number() {
    constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
    constexpr int64_t kEdges[] = {
        -1,    kLargest,         -kLargest - 1,   kLargest / 4 + 1, int64_t{1} << 32,
        65536, int64_t{1} << 31, (1LL << 31) - 1, int64_t{1} << 61, kLargest - 1};
    const uint8_t first = byte();
    if (first < 200) {
      return first;
    }
    if (first < 250) {
      return kEdges[first % std::size(kEdges)];
    }
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) {
      value = value << 8 | byte();
    }
    return static_cast<int64_t>(value);
  }

  std::string text(size_t count) {
    std::string bytes;
    while (bytes.size() < count) {
      bytes.push_back(static_cast<char>(byte()));
    }
    return bytes;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

}  // namespace tandem::fuzz
