#include "src/prepare/images/image_batch_files.h"

#include "src/core/error.h"

namespace tandem {
namespace {

constexpr int64_t kCifarSide = 32;
constexpr int64_t kCifarPixels = 3 * kCifarSide * kCifarSide;

int64_t big_endian_32(std::string_view file, size_t at) {
  int64_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value = (value << 8) | static_cast<uint8_t>(file[at + i]);
  }
  return value;
}

// Checks magic and length; returns the dimensions.
std::vector<int64_t> parse_idx_header(std::string_view file, size_t dimensions,
                                      const std::string& place) {
  const size_t header = 4 + 4 * dimensions;
  const int64_t magic = 0x800 + static_cast<int64_t>(dimensions);
  if (file.size() < header || big_endian_32(file, 0) != magic) {
    fail_data(place, ": not an IDX file of bytes with ", dimensions, " dimensions");
  }
  std::vector<int64_t> dims;
  for (size_t i = 0; i < dimensions; ++i) {
    dims.push_back(big_endian_32(file, 4 + 4 * i));
  }
  int64_t bytes = 1;
  for (size_t i = dimensions; i-- > 0;) {  // the number of records last: none hides no overflow
    if (__builtin_mul_overflow(bytes, dims[i], &bytes)) {
      fail_data(place, ": damaged IDX header");
    }
  }
  const auto there = static_cast<int64_t>(file.size() - header);
  if (there != bytes) {
    fail_data(place, ": the header announces ", dims[0], " records, ", bytes, " bytes; ",
              there < bytes ? "the file is cut short at " : "there are ", there, " bytes");
  }
  return dims;
}

}  // namespace

IdxImages parse_idx_images(std::string_view file, const std::string& place) {
  const std::vector<int64_t> dims = parse_idx_header(file, 3, place);
  if (dims[1] == 0 || dims[2] == 0) {
    fail_data(place, ": images of ", dims[2], " x ", dims[1], " pixels (width x height)");
  }
  return {dims[0], dims[1], dims[2], file.substr(16)};
}

std::string_view parse_idx_labels(std::string_view file, const std::string& place) {
  parse_idx_header(file, 1, place);
  return file.substr(8);
}

void parse_cifar_batch(std::string_view file, const std::string& place,
                       const std::function<void(int64_t, int32_t, const Image&)>& use) {
  const auto record_bytes = static_cast<size_t>(1 + kCifarPixels);
  if (file.empty() || file.size() % record_bytes != 0) {
    fail_data(place, ": ", file.size() % record_bytes, " bytes after record ",
              file.size() / record_bytes, " (a record has ", record_bytes,
              "): cut short, or not a CIFAR-10 batch");
  }
  Image image{3, kCifarSide, kCifarSide, {}};
  for (size_t record = 0; record * record_bytes < file.size(); ++record) {
    const std::string_view bytes = file.substr(record * record_bytes, record_bytes);
    image.pixels.assign(bytes.begin() + 1, bytes.end());
    use(static_cast<int64_t>(record), static_cast<uint8_t>(bytes[0]), image);
  }
}

}  // namespace tandem
