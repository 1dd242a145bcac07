// Chooses the device and the element type of a kernel call.
//
// A kernel is a free function whose first argument is a device tag: the CPU body stands in x.cpp,
// the CUDA body in x.cu. This header has the only conditional compilation for CUDA in the project.
#pragma once

#include "src/core/device.h"
#include "src/core/dtype.h"
#include "src/core/error.h"
#include "src/core/stream.h"

#if defined(__CUDACC__)
#define TANDEM_HOST_DEVICE __host__ __device__
#else
#define TANDEM_HOST_DEVICE
#endif

namespace tandem {

struct Cpu {};  // runs inline on the calling thread, with OpenMP inside the kernel where it pays

// Calls f(Cpu{}) for a stream on the CPU.
template <class F>
decltype(auto) on_device(const Stream& stream, F&& f) {
  require(stream.device() == Device::kCpu, "on_device: this build has no kernels for that device");
  return f(Cpu{});
}

// Calls f.template operator()<T>() with the C++ type of a floating dtype.
template <class F>
decltype(auto) on_float(DType dtype, F&& f) {
  if (dtype == DType::kF64) {
    return f.template operator()<double>();
  }
  require(dtype == DType::kF32,
          [&] { return str("on_float: not a float dtype: ", name_of(dtype)); });
  return f.template operator()<float>();
}

// Both at once: f.template operator()<T>(device_tag).
template <class F>
decltype(auto) on_device_and_float(const Stream& stream, DType dtype, F&& f) {
  return on_float(dtype, [&]<class T>() -> decltype(auto) {
    return on_device(
        stream, [&](auto device) -> decltype(auto) { return f.template operator()<T>(device); });
  });
}

}  // namespace tandem
