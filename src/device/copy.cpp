#include "src/device/copy.h"

#include <cstring>

#include "src/device/cuda.h"
#include "src/device/dispatch.h"

namespace tandem {

void copy(Stream& stream, const Tensor& from, const Tensor& to) {
  require(from.dtype() == to.dtype() && from.elements() == to.elements(), [&] {
    return str("copy: ", name_of(from.dtype()), " ", from.shape(), " to ", name_of(to.dtype()), " ",
               to.shape());
  });
  if (from.bytes() == 0 || from.raw() == to.raw()) {
    return;
  }
  if (stream.is_dry()) {
    return stream.charge({.bytes = 2.0 * static_cast<double>(from.bytes()), .launches = 1});
  }
  if constexpr (kHasCuda) {
    if (stream.device() == Device::kCuda) {
      return cuda::copy(from.raw(), to.raw(), from.bytes(), stream.handle());
    }
  }
  require(from.device() == Device::kCpu && to.device() == Device::kCpu,
          "copy: GPU memory on a stream of the CPU");
  stream.submit([from, to] { std::memcpy(to.raw(), from.raw(), static_cast<size_t>(to.bytes())); });
}

void zero(Stream& stream, const Tensor& tensor) {
  if (tensor.bytes() == 0) {
    return;
  }
  if (stream.is_dry()) {
    return stream.charge({.bytes = static_cast<double>(tensor.bytes()), .launches = 1});
  }
  if constexpr (kHasCuda) {
    if (stream.device() == Device::kCuda) {
      return cuda::zero(tensor.raw(), tensor.bytes(), stream.handle());
    }
  }
  stream.submit([tensor] { std::memset(tensor.raw(), 0, static_cast<size_t>(tensor.bytes())); });
}

Tensor copied(Stream& stream, const Tensor& from, Memory& memory) {
  Tensor to = stream.is_dry()
                  ? Tensor::zeros(memory, from.shape(), from.dtype(), MemoryClass::kData)
                  : Tensor::empty(memory, from.shape(), from.dtype(), MemoryClass::kData);
  copy(stream, from, to);
  stream.synchronize();
  return to;
}

}  // namespace tandem
