// Files that hold many images: IDX (LeCun's MNIST format) and CIFAR-10's binary batches.
//
// A file must match its format as a whole: a wrong length, count or magic number is an error
// (kData) that names the place.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/prepare/images/image.h"

namespace tandem {

// IDX: four bytes of magic (0, 0, 8 for unsigned bytes, number of dimensions), the dimensions as
// big-endian 32-bit numbers, then the bytes. `place` is used in messages.
struct IdxImages {
  int64_t count = 0, height = 0, width = 0;
  std::string_view pixels;  // a view of the file's bytes
};
IdxImages parse_idx_images(std::string_view file, const std::string& place);
std::string_view parse_idx_labels(std::string_view file, const std::string& place);

// CIFAR-10: records of one label byte and 3 x 32 x 32 pixels. Calls `use(record, label, image)`.
void parse_cifar_batch(std::string_view file, const std::string& place,
                       const std::function<void(int64_t, int32_t, const Image&)>& use);

}  // namespace tandem
