// A file without a name, for what may be too large for memory until a dataset is complete. It
// vanishes when it is closed, so a process that is killed leaves nothing behind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class TemporaryFile {
 public:
  // `folder`: where the output will be written.
  explicit TemporaryFile(const std::string& folder);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  int64_t bytes() const { return bytes_; }

  // May be called only before the functions below.
  void append(const void* bytes, int64_t count);

  void read(int64_t at, void* out, int64_t count) const;

  // Calls `use` with the place of the first value, and with up to 2^16 values, in order.
  template <class T, class Use>
  void for_each_block(const Use& use) const {
    constexpr int64_t kBytes = sizeof(T);
    std::vector<T> block(size_t{1} << 16);
    for (int64_t at = 0; at < bytes_ / kBytes; at += std::ssize(block)) {
      block.resize(std::min(block.size(), static_cast<size_t>(bytes_ / kBytes - at)));
      read(at * kBytes, block.data(), std::ssize(block) * kBytes);
      use(at, std::span<const T>(block));
    }
  }

  // The content as text, which must not be empty. The system reads a page when it is first used.
  std::string_view map();

  // Gives back the memory of all pages of map(); they are read again when they are used again.
  void forget() const;

 private:
  std::string folder_;
  std::FILE* file_;
  int64_t bytes_ = 0;
  std::string_view mapped_;
};

}  // namespace tandem
