#include "src/kernels/convert.h"

#include "src/device/copy.h"
#include "src/device/dispatch.h"
#include "src/kernels/elementwise.h"

namespace tandem {

void convert(const Stream& stream, const Tensor& from, const Tensor& to) {
  require(from.elements() == to.elements() && from.device() == stream.device() &&
              to.device() == stream.device() &&
              (from.dtype() == DType::kF32 || to.dtype() == DType::kF32),
          "convert: ", name_of(from.dtype()), " ", from.shape(), " to ", name_of(to.dtype()), " ",
          to.shape());
  on_device(stream, touching(from, to), [&](auto device) {
    const DType other = from.dtype() == DType::kF32 ? to.dtype() : from.dtype();
    on_float(other, [&]<class T>() {
      if constexpr (std::is_same_v<T, double>) {
        fail(ExitCode::kInternal, "convert: f64 is not converted");
      } else if (from.dtype() == DType::kF32) {
        kernels::convert(device, from.elements(), from.data<float>(), to.data<T>());
      } else {
        kernels::convert(device, from.elements(), from.data<T>(), to.data<float>());
      }
    });
  });
}

void copy_rounded(Stream& stream, const Tensor& from, const Tensor& to) {
  if (from.dtype() == to.dtype()) {
    return copy(stream, from, to);
  }
  Memory host(Device::kCpu);
  const Tensor rounded = Tensor::empty(host, from.shape(), to.dtype(), MemoryClass::kStaging);
  convert(Stream::compute(Device::kCpu), from, rounded);
  copy(stream, rounded, to);
}

Tensor copied_as_f32(Stream& stream, const Tensor& from, Memory& host) {
  const Tensor same = copied(stream, from, host);
  if (same.dtype() == DType::kF32) {
    return same;
  }
  const Tensor wide = Tensor::empty(host, from.shape(), DType::kF32, MemoryClass::kStaging);
  convert(Stream::compute(Device::kCpu), same, wide);
  return wide;
}

}  // namespace tandem
