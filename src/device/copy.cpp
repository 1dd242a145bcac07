#include "src/device/copy.h"

#include <cstring>

#include "src/device/cuda.h"
#include "src/device/dispatch.h"

namespace tandem {

void copy(Stream& stream, const Tensor& from, const Tensor& to) {
  require(from.dtype() == to.dtype() && from.elements() == to.elements(),
          "copy: ", name_of(from.dtype()), " ", from.shape(), " to ", name_of(to.dtype()), " ",
          to.shape());
  if (from.bytes() == 0 || (from.raw() == to.raw() && from.device() == to.device())) {
    return;
  }
  on_device(stream, touching(from, to), [&]<class D>(D device) {
    if constexpr (std::is_same_v<D, Cuda>) {
      cuda::copy(from.raw(), to.raw(), from.bytes(), device.stream);
    } else {
      require(from.device() == Device::kCpu && to.device() == Device::kCpu,
              "copy: GPU memory on a stream of the CPU");
      stream.submit([=] { std::memcpy(to.raw(), from.raw(), static_cast<size_t>(to.bytes())); });
    }
  });
}

void zero(Stream& stream, const Tensor& tensor) {
  if (tensor.bytes() == 0) {
    return;
  }
  on_device(stream, touching(tensor), [&]<class D>(D device) {
    if constexpr (std::is_same_v<D, Cuda>) {
      cuda::zero(tensor.raw(), tensor.bytes(), device.stream);
    } else {
      stream.submit([=] { std::memset(tensor.raw(), 0, static_cast<size_t>(tensor.bytes())); });
    }
  });
}

Tensor copied(Stream& stream, const Tensor& from, Memory& memory) {
  Tensor to = stream.is_dry()
                  ? Tensor::zeros(memory, from.shape(), from.dtype(), MemoryClass::kData)
                  : Tensor::empty(memory, from.shape(), from.dtype(), MemoryClass::kData);
  stream.synchronize();  // may have a deadline; a copy to memory that is not pinned has none
  copy(stream, from, to);
  stream.synchronize();
  return to;
}

}  // namespace tandem
