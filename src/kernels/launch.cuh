// How a .cu file launches a kernel and gets its shared memory. The emulated GPU of tests/simt/
// replaces this header by its own.
#pragma once

#include <cuda_runtime.h>

#include <mutex>

#include "src/device/cuda_check.h"
#include "src/device/dispatch.h"

namespace tandem {

// Lets a kernel have that much dynamic shared memory on the GPU of this process. CUDA is asked only
// for more than before.
template <auto kKernel>
void allow_dynamic_shared(size_t bytes) {
  static std::mutex mutex;
  static size_t allowed = 48 * 1024;  // what every kernel may have
  std::lock_guard lock(mutex);
  if (bytes > allowed) {
    cuda::check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(bytes)));
    allowed = bytes;
  }
}

// launch<kernel>(device, grid, block, dynamic_bytes, arguments...): asynchronous, on the device's
// stream. dynamic_bytes is the size of dynamic_shared(). Throws Error(kInternal) with the kernel's
// name if CUDA refuses the launch.
template <auto kKernel, class... A>
void launch(Cuda device, dim3 grid, dim3 block, size_t dynamic_bytes, A... arguments) {
  static_cast<void>(cuda::is_listed<kKernel>);
  if (dynamic_bytes > 0) {
    allow_dynamic_shared<kKernel>(dynamic_bytes);
  }
  kKernel<<<grid, block, dynamic_bytes, device.stream>>>(arguments...);
  cuda::check_launch(__PRETTY_FUNCTION__);
}

// The block's static shared memory, as one struct per kernel (at most 48 KiB). Two calls with the
// same type return the same memory.
template <class T>
__device__ T& shared() {
  __shared__ T storage;
  return storage;
}

// The block's dynamic shared memory, aligned to 16 bytes.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}

// The number of blocks for n items, with `each` items in a block; n is at least 1.
inline unsigned blocks_for(int64_t n, int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

}  // namespace tandem
