#include "src/core/tensor.h"

#include <algorithm>

#include "src/core/error.h"

namespace tandem {

Tensor Tensor::empty(Memory& memory, Shape shape, DType dtype, MemoryClass memory_class) {
  Tensor tensor;
  tensor.shape_ = shape;
  tensor.elements_ = shape.elements();
  tensor.dtype_ = dtype;
  tensor.storage_ = memory.allocate(tensor.bytes(), memory_class);
  return tensor;
}

Tensor Tensor::zeros(Memory& memory, Shape shape, DType dtype, MemoryClass memory_class) {
  Tensor tensor = empty(memory, shape, dtype, memory_class);
  tensor.storage_->clear();
  return tensor;
}

Tensor Tensor::of(std::span<const std::byte> elements, Memory& memory, Shape shape, DType dtype,
                  MemoryClass memory_class) {
  Tensor tensor = empty(memory, shape, dtype, memory_class);
  require(memory.device() == Device::kCpu && std::ssize(elements) == tensor.bytes(), [&] {
    return str("Tensor::of: ", elements.size(), " bytes for ", name_of(dtype), " ", shape);
  });
  if (!memory.is_dry()) {
    std::ranges::copy(elements, tensor.raw());
  }
  return tensor;
}

std::byte* Tensor::raw() const {
  require(storage_ != nullptr, "Tensor: used without elements");
  return static_cast<std::byte*>(storage_->data()) + offset_bytes_;
}

Tensor Tensor::reshape(Shape shape) const {
  require(shape.elements() == elements_, [&] {
    return str("Tensor::reshape: ", shape_, " does not have the elements of ", shape);
  });
  Tensor view = *this;
  view.shape_ = shape;
  return view;
}

Tensor Tensor::slice(int64_t first, int64_t count) const {
  require(first >= 0 && count >= 0 && first + count <= elements_,
          [&] { return str("Tensor::slice: ", first, " + ", count, " is outside ", shape_); });
  Tensor view = *this;
  view.shape_ = Shape{count};
  view.elements_ = count;
  view.offset_bytes_ += first * size_of(dtype_);
  return view;
}

void Tensor::require_dtype(DType dtype) const {
  require(dtype == dtype_,
          [&] { return str("Tensor: holds ", name_of(dtype_), ", read as ", name_of(dtype)); });
}

}  // namespace tandem
