// Replaces src/kernels/launch.cuh on the emulated GPU: the same interface, run by tests/simt.
#pragma once

#include <cuda_runtime.h>

#include <tuple>
#include <type_traits>

#include "src/device/cuda_check.h"
#include "src/device/dispatch.h"
#include "src/device/global.h"
#include "tests/simt/launch.h"
#include "tests/simt/simt.h"

namespace tandem {

namespace simt_launch {

template <class... P, class... A>
std::function<void()> bind(void (*kernel)(P...), A... arguments) {
  return [=] {
    const std::tuple<P...> parameters(arguments...);
    simt::for_each_thread([&] { std::apply(kernel, parameters); });
  };
}

template <class... P, class... A>
std::string text_of(void (*)(P...), A... arguments) {
  return (simt::text_of_argument<P>(arguments) + ... + "");
}

}  // namespace simt_launch

// Enqueues the kernel on the device's stream. A launch that sm_80 would refuse is a failure.
template <auto kKernel, class... A>
void launch(Cuda device, dim3 grid, dim3 block, size_t dynamic_bytes, A... arguments) {
  static_cast<void>(cuda::is_listed<kKernel>);
  simt::enqueue_kernel(
      device.stream,
      {simt::kernel_name(__PRETTY_FUNCTION__), reinterpret_cast<const void*>(kKernel), grid, block,
       dynamic_bytes, simt::launch_observer() ? simt_launch::text_of(kKernel, arguments...) : ""},
      simt_launch::bind(kKernel, arguments...));
}

// The block's static shared memory, as one struct per kernel (up to 48 KiB). All calls with one
// type return the same memory, which is poisoned at the start of each block.
template <class T>
T& shared() {
  static_assert(std::is_trivially_default_constructible_v<T> &&
                std::is_trivially_destructible_v<T>);
  static simt::SharedSlot slot;
  return *static_cast<T*>(simt::shared_memory(slot, sizeof(T), alignof(T)));
}

// The block's dynamic shared memory, aligned to 16 bytes.
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(simt::dynamic_shared_memory());
}

// The number of blocks for n items, with `each` items per block; n is at least 1.
inline unsigned blocks_for(int64_t n, int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

}  // namespace tandem
