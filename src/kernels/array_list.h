// Many flat arrays as the work of one launch. A list of the arrays stands in GPU memory, and is
// written again only when it changes. The arrays are cut into chunks; a block takes whole chunks.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

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

  // Work that is enqueued on the stream from now on sees this list.
  ArrayList<Array> list(Stream& stream, const std::vector<Array>& arrays) {
    std::vector<ArrayChunk> chunks;
    for (size_t a = 0; a < arrays.size(); ++a) {
      for (int64_t first = 0; first < arrays[a].elements; first += kChunkElements) {
        chunks.push_back({static_cast<int32_t>(a), static_cast<int32_t>(first / kChunkElements)});
      }
    }
    if (chunks.empty()) {
      return {nullptr, nullptr, 0};
    }
    const size_t array_bytes = arrays.size() * sizeof(Array);
    std::vector<std::byte> bytes(array_bytes + chunks.size() * sizeof(ArrayChunk));
    std::memcpy(bytes.data(), arrays.data(), array_bytes);
    std::memcpy(bytes.data() + array_bytes, chunks.data(), bytes.size() - array_bytes);
    write(stream, bytes);
    return {reinterpret_cast<const Array*>(device_.raw()),
            reinterpret_cast<const ArrayChunk*>(device_.raw() + array_bytes),
            static_cast<int64_t>(chunks.size())};
  }

 private:
  void write(Stream& stream, const std::vector<std::byte>& bytes) {
    if (bytes == written_) {
      return;
    }
    Memory host(Device::kCpu);
    const Shape shape{static_cast<int64_t>(bytes.size())};
    if (bytes.size() != written_.size()) {
      device_ = Tensor::empty(*memory_, shape, DType::kU8, MemoryClass::kWorkspace);
    }
    copy(stream, Tensor::of(bytes, host, shape, DType::kU8, MemoryClass::kWorkspace), device_);
    written_ = bytes;
  }

  Memory* memory_;
  std::vector<std::byte> written_;  // what device_ holds, or will hold in the stream's order
  Tensor device_{};                 // the arrays, then the chunks
};

}  // namespace tandem
