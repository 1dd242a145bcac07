// CUDA's error codes as Tandem's errors. For files that include CUDA's headers; others use
// src/device/cuda.h.
#pragma once

#include <cuda_runtime.h>

#include <source_location>
#include <vector>

namespace tandem::cuda {

// Throws Error for anything but cudaSuccess: kOutOfMemory, kTemporary for a device that is lost or
// sick, kInternal otherwise. The message has CUDA's own words, the name of the calling function,
// the GPU and its host.
void check(cudaError_t code, std::source_location place = std::source_location::current());

// The same for the kernel launched last; `launch` is the launching function's signature, which
// holds the kernel's name.
void check_launch(const char* launch);

// All kernels for which launch() is compiled. The list is complete before main() begins.
inline std::vector<const void*>& kernels() {
  static std::vector<const void*> all;
  return all;
}
template <auto kKernel>
inline const bool is_listed = (kernels().push_back(reinterpret_cast<const void*>(kKernel)), true);

}  // namespace tandem::cuda
