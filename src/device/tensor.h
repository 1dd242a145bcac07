// A contiguous, row-major array with 64-bit sizes. Copying a Tensor copies the handle, not the
// elements.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "src/core/dtype.h"
#include "src/core/shape.h"
#include "src/device/memory.h"

namespace tandem {

class Tensor {
 public:
  Tensor() = default;  // holds nothing
  // Elements are not initialised.
  static Tensor empty(Memory& memory, Shape shape, DType dtype, MemoryClass memory_class);
  // All bits zero. In GPU memory this blocks the host until the memory's stream is done, so use it
  // for set-up only.
  static Tensor zeros(Memory& memory, Shape shape, DType dtype, MemoryClass memory_class);
  // A copy of `elements`; host memory only.
  static Tensor of(std::span<const std::byte> elements, Memory& memory, Shape shape, DType dtype,
                   MemoryClass memory_class);

  explicit operator bool() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_->device(); }
  int64_t elements() const { return elements_; }
  int64_t bytes() const { return elements_ * size_of(dtype_); }
  // True when no other tensor shares the memory.
  bool unique() const { return storage_.use_count() == 1; }

  // Points to the first element; T must be the dtype's C++ type.
  template <class T>
  T* data() const {
    require_dtype(dtype_of<T>);
    return reinterpret_cast<T*>(raw());
  }
  template <class T>
  std::span<T> as() const {
    return {data<T>(), static_cast<size_t>(elements_)};
  }
  std::byte* raw() const;
  // For debuggers and messages: dtype, shape, device, and the first and last elements, as in "f32
  // [3] on cpu: 1 2 3". Does not wait for work that is still queued on a stream.
  std::string text() const;

  Tensor reshape(Shape shape) const;                 // same elements
  Tensor slice(int64_t first, int64_t count) const;  // elements [first, first + count), flat
  // The bytes of a u8 tensor from `first_byte` on, as elements of another type.
  Tensor view(int64_t first_byte, Shape shape, DType dtype) const;

 private:
  void require_dtype(DType dtype) const;
  std::shared_ptr<Storage> storage_;
  int64_t offset_bytes_ = 0;
  Shape shape_{0};
  int64_t elements_ = 0;
  DType dtype_ = DType::kF32;
};

}  // namespace tandem
