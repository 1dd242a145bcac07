// Chooses the device and the element type of a kernel call.
//
// A kernel is a free function whose first argument is a device tag: the CPU body is in x.cpp, the
// CUDA body in x.cu. Builds with CUDA define TANDEM_CUDA; only this file tests it.
#pragma once

#include "src/core/dtype.h"
#include "src/core/error.h"
#include "src/core/host_device.h"
#include "src/device/device.h"
#include "src/device/stream.h"

namespace tandem {

#if defined(TANDEM_CUDA)
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

// Each tag converts to its Device, which is used to query workspace sizes.
struct Cpu {  // runs inline on the calling thread, with OpenMP inside the kernel where it pays
  constexpr operator Device() const { return Device::kCpu; }
};
struct Cuda {  // enqueued on a stream; the host does not wait
  CUstream_st* stream;
  constexpr operator Device() const { return Device::kCuda; }
};

// Calls f(Cpu{}) or f(Cuda{...}), by the stream's device. f must do nothing but call kernels, which
// do `work`: the stream's meter may run them or not.
template <class F>
void on_device(const Stream& stream, const Work& work, F&& f,
               const std::source_location& place = std::source_location::current()) {
  const auto run = [&] {
    if constexpr (kHasCuda) {
      if (stream.device() == Device::kCuda) {
        return f(Cuda{stream.handle()});
      }
    }
    f(Cpu{});
  };
  stream.meter() ? stream.meter()->call(work, place, run) : run();
}

// Calls f.template operator()<T>() with the C++ type of a floating dtype.
template <class F>
decltype(auto) on_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64:
      return f.template operator()<double>();
    case DType::kBf16:
      return f.template operator()<Bf16>();
    case DType::kFp16:
      return f.template operator()<Fp16>();
    default:
      require(dtype == DType::kF32, "on_float: not a float dtype: ", name_of(dtype));
      return f.template operator()<float>();
  }
}

// Both at once: f.template operator()<T>(device_tag). The GPU has no f64 kernels.
template <class F>
void on_device(const Stream& stream, const Work& work, DType dtype, F&& f,
               const std::source_location& place = std::source_location::current()) {
  on_device(
      stream, work,
      [&]<class D>(D device) {
        on_float(dtype, [&]<class T>() {
          if constexpr (std::is_same_v<D, Cuda> && std::is_same_v<T, double>) {
            fail(ExitCode::kInternal, "f64 has no kernels on cuda");
          } else {
            f.template operator()<T>(device);
          }
        });
      },
      place);
}

}  // namespace tandem

// Instances of kernels: M(T) for each type that they compute with on a device.
#define TANDEM_FOR_CPU(M) M(float) M(double) M(Bf16) M(Fp16)
#define TANDEM_FOR_GPU(M) M(float) M(Bf16) M(Fp16)
