#include "src/device/tensor.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "src/core/error.h"
#include "src/device/cuda.h"
#include "src/device/dispatch.h"

namespace tandem {

namespace {

// More than any machine holds, and so few that no sum of bytes overflows.
constexpr int64_t kMostElements = int64_t{1} << 46;
constexpr int64_t kShown = 4;  // elements that text() shows at each end

// The element of type T at `bytes`. Plus makes a number of what str() would not print as one.
template <class T>
std::string text_of(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return str(+value);
}

// The element of this dtype at `bytes`.
std::string element_text(DType dtype, const std::byte* bytes) {
  switch (dtype) {
    case DType::kI32:
      return text_of<int32_t>(bytes);
    case DType::kI64:
      return text_of<int64_t>(bytes);
    case DType::kU8:
      return text_of<uint8_t>(bytes);
    case DType::kI8:
      return text_of<int8_t>(bytes);
    default:
      return on_float(dtype, [&]<class T>() { return text_of<T>(bytes); });
  }
}

// A copy in host memory of a tensor's bytes on any device.
std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
  if constexpr (kHasCuda) {
    if (tensor.device() == Device::kCuda) {
      const cuda::StreamHandle stream = cuda::make_stream(false);
      cuda::copy(tensor.raw(), bytes.data(), tensor.bytes(), stream.get());
      cuda::synchronize(stream.get());
      return bytes;
    }
  }
  std::ranges::copy_n(tensor.raw(), tensor.bytes(), bytes.begin());
  return bytes;
}

}  // namespace

Tensor Tensor::empty(Memory& memory, Shape shape, DType dtype, MemoryClass memory_class) {
  Tensor tensor;
  tensor.shape_ = shape;
  tensor.elements_ = shape.elements();
  if (tensor.elements_ > kMostElements) {
    fail(ExitCode::kConfig, "a tensor of ", shape,
         " has more than 2^46 elements; take smaller sizes");
  }
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
  require(memory.device() == Device::kCpu && std::ssize(elements) == tensor.bytes(),
          "Tensor::of: ", elements.size(), " bytes for ", name_of(dtype), " ", shape);
  if (!memory.is_dry()) {
    std::ranges::copy(elements, tensor.raw());
  }
  return tensor;
}

std::byte* Tensor::raw() const {
  require(storage_ != nullptr, "Tensor: used without elements");
  return static_cast<std::byte*>(storage_->data()) + offset_bytes_;
}

std::string Tensor::text() const {
  if (!storage_) {
    return "no tensor";
  }
  std::string text = str(name_of(dtype_), " ", shape_, " on ", name_of(device()), ":");
  if (storage_->is_dry()) {
    return text + " dry";
  }
  const auto append = [&](int64_t first, int64_t count) {
    const std::vector<std::byte> bytes = bytes_of(slice(first, count));
    for (int64_t i = 0; i < count; ++i) {
      text += " " + element_text(dtype_, bytes.data() + i * size_of(dtype_));
    }
  };
  if (elements_ <= 2 * kShown) {
    append(0, elements_);
  } else {
    append(0, kShown);
    text += " ...";
    append(elements_ - kShown, kShown);
  }
  return text;
}

Tensor Tensor::reshape(Shape shape) const {
  require(shape.elements() == elements_, "Tensor::reshape: ", shape_,
          " does not have the elements of ", shape);
  Tensor view = *this;
  view.shape_ = shape;
  return view;
}

Tensor Tensor::slice(int64_t first, int64_t count) const {
  require(first >= 0 && count >= 0 && first + count <= elements_, "Tensor::slice: ", first, " + ",
          count, " is outside ", shape_);
  Tensor view = *this;
  view.shape_ = Shape{count};
  view.elements_ = count;
  view.offset_bytes_ += first * size_of(dtype_);
  return view;
}

Tensor Tensor::view(int64_t first_byte, Shape shape, DType dtype) const {
  require_dtype(DType::kU8);
  Tensor view = slice(first_byte, shape.elements() * size_of(dtype));
  require(view.offset_bytes_ % size_of(dtype) == 0, "Tensor::view: byte ", first_byte,
          " begins no ", name_of(dtype));
  view.shape_ = shape;
  view.elements_ = shape.elements();
  view.dtype_ = dtype;
  return view;
}

void Tensor::require_dtype(DType dtype) const {
  require(dtype == dtype_,
          [&] { return str("Tensor: holds ", name_of(dtype_), ", read as ", name_of(dtype)); });
}

}  // namespace tandem
