// Bytes of a file that may be damaged. Private to src/io/hdf5.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "src/core/error.h"
#include "src/io/file.h"

namespace tandem::hdf5 {

// The place of what is not in the file: elements that were never written, or what a soft or
// external link names. Larger numbers become this one, so that sums of two do not overflow.
inline constexpr int64_t kNowhere = int64_t{1} << 62;

// Bytes of the file, read from front to back. What does not fit into them is damage.
class Bytes {
 public:
  Bytes(const FileReader& file, int64_t begin, int64_t size) : file_(file), begin_(begin) {
    require(begin >= 0 && size >= 0 && size <= file.bytes() - begin);
    bytes_.resize(static_cast<size_t>(size));
    file.read(begin, size, bytes_.data());
  }

  int64_t place() const { return begin_ + at_; }  // in the file
  int64_t left() const { return std::ssize(bytes_) - at_; }

  std::string_view take(int64_t size) {
    require(size >= 0 && size <= left());
    at_ += size;
    return {bytes_.data() + (at_ - size), static_cast<size_t>(size)};
  }
  // The next bytes, apart from what comes after them.
  Bytes cut(int64_t size) {
    const int64_t begin = place();
    return {file_, begin, take(size)};
  }
  // An unsigned number of 1, 2, 4 or 8 bytes.
  int64_t number(int64_t size) {
    uint64_t value = 0;
    std::memcpy(&value, take(size).data(), static_cast<size_t>(size));
    return static_cast<int64_t>(std::min(value, static_cast<uint64_t>(kNowhere)));
  }
  // The text at this distance from the first byte, up to a zero.
  std::string_view text_at(int64_t distance) const {
    require(distance >= 0 && distance < std::ssize(bytes_));
    const auto begin = static_cast<size_t>(distance);
    const size_t end = bytes_.find('\0', begin);
    require(end != std::string::npos);
    return std::string_view(bytes_).substr(begin, end - begin);
  }
  void expect(std::string_view signature) { require(take(std::ssize(signature)) == signature); }
  void require(bool is_sound) const {
    if (!is_sound) {
      fail_data(file_.path(), ": damaged: the HDF5 structure at byte ", begin_,
                " is broken; copy or create it again");
    }
  }

 private:
  Bytes(const FileReader& file, int64_t begin, std::string_view bytes)
      : file_(file), begin_(begin), bytes_(bytes) {}

  const FileReader& file_;
  int64_t begin_;
  std::string bytes_;
  int64_t at_ = 0;
};

}  // namespace tandem::hdf5
