// Many flat arrays as the work of one launch. A list of the arrays stands in GPU memory, and is
// written again only when it changes. The arrays are cut into chunks; a block takes whole chunks.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/device/copy.h"
#include "src/device/tensor.h"

namespace tandem {

inline constexpr int kChunkElements = 8192;

// Elements [number * kChunkElements, ...) of an array, at most kChunkElements of them.
struct ArrayChunk {
  int32_t array, number;
};

// The list as a kernel gets it; both pointers are in device memory. Array describes one array and
// has a member `int64_t elements`.
template <class Array>
struct ArrayList {
  const Array* arrays;
  const ArrayChunk* chunks;
  int64_t chunk_count;
};

template <class Array>
class ArrayListMemory {
  // Lists are compared byte by byte, so an array's description has no padding.
  static_assert(std::has_unique_object_representations_v<Array> &&
                sizeof(Array) % alignof(ArrayChunk) == 0);

 public:
  // Takes memory when there is a list; `memory` must outlive this.
  explicit ArrayListMemory(Memory& memory) : memory_(&memory) {}

  // Work that is enqueued on the stream from now on sees this list. It is copied from memory that a
  // graph would not find again, so a captured stream must get the list of before. A dry stream only
  // needs its memory: there it may have any number of chunks.
  ArrayList<Array> list(Stream& stream, const std::vector<Array>& arrays) {
    const auto array_bytes = static_cast<int64_t>(arrays.size() * sizeof(Array));
    const int64_t count = sum_of(arrays, [](const Array& array) {
      return (array.elements + kChunkElements - 1) / kChunkElements;
    });
    if (count == 0) {
      return {nullptr, nullptr, 0};
    }
    const Shape shape{array_bytes + count * static_cast<int64_t>(sizeof(ArrayChunk))};
    if (!device_ || device_.shape() != shape) {
      device_ = Tensor::empty(*memory_, shape, DType::kU8, MemoryClass::kWorkspace);
    }
    if (!stream.is_dry()) {
      write(stream, arrays);
    }
    return {reinterpret_cast<const Array*>(device_.raw()),
            reinterpret_cast<const ArrayChunk*>(device_.raw() + array_bytes), count};
  }

 private:
  void write(Stream& stream, const std::vector<Array>& arrays) {
    std::vector<std::byte> bytes(static_cast<size_t>(device_.bytes()));
    std::byte* end = bytes.data() + arrays.size() * sizeof(Array);
    std::memcpy(bytes.data(), arrays.data(), arrays.size() * sizeof(Array));
    for (size_t a = 0; a < arrays.size(); ++a) {
      for (int64_t first = 0; first < arrays[a].elements; first += kChunkElements) {
        const ArrayChunk chunk{static_cast<int32_t>(a),
                               static_cast<int32_t>(first / kChunkElements)};
        std::memcpy(end, &chunk, sizeof(chunk));
        end += sizeof(chunk);
      }
    }
    if (bytes == written_) {
      return;
    }
    require(!stream.is_captured(), "ArrayListMemory: a list changes in a step that is captured");
    Memory host(Device::kCpu);
    copy(stream, Tensor::of(bytes, host, device_.shape(), DType::kU8, MemoryClass::kWorkspace),
         device_);
    written_ = bytes;
  }

  Memory* memory_;
  std::vector<std::byte> written_;  // what device_ holds, or will hold in the stream's order
  Tensor device_{};                 // the arrays, then the chunks
};

}  // namespace tandem
