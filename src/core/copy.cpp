#include "src/core/copy.h"

#include <cstring>

#include "src/core/cuda.h"
#include "src/core/dispatch.h"

namespace tandem {

void copy(Stream& stream, const Tensor& from, const Tensor& to) {
  require(from.dtype() == to.dtype() && from.elements() == to.elements(), [&] {
    return str("copy: ", name_of(from.dtype()), " ", from.shape(), " to ", name_of(to.dtype()), " ",
               to.shape());
  });
  if (from.bytes() == 0 || from.raw() == to.raw()) {
    return;
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

Tensor copied(Stream& stream, const Tensor& from, Memory& memory) {
  Tensor to = Tensor::empty(memory, from.shape(), from.dtype(), MemoryClass::kData);
  copy(stream, from, to);
  stream.synchronize();
  return to;
}

}  // namespace tandem
