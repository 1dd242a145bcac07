// Launches kernels and gives their blocks shared memory, for the emulated src/kernels/launch.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>

namespace simt {

struct Launch {
  std::string kernel;
  const void* function;
  dim3 grid, block;
  size_t dynamic_bytes;
  std::string arguments;  // for the launch observer; empty when there is none
};

// Checks the launch against the limits of sm_80 and enqueues it; `run` calls for_each_thread.
void enqueue_kernel(CUstream_st* stream, Launch launch, std::function<void()> run);

// The bytes of a value that has no pointers to the host's memory, as text.
std::string text_of_bytes(const void* bytes, size_t size);
template <class T>
std::string text_of_argument(T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  __builtin_clear_padding(&value);
  return text_of_bytes(&value, sizeof value);
}

// Inside `run` of enqueue_kernel: calls `body` once per thread of the grid.
void for_each_thread(const std::function<void()>& body);

// The kernel's name with template arguments, from a __PRETTY_FUNCTION__ that has "kKernel = ...".
std::string kernel_name(const std::string& signature);

// Static shared memory of the running block, poisoned when the block first uses it.
struct SharedSlot {    // one per type
  uint64_t block = 0;  // the block that `memory` belongs to
  void* memory = nullptr;
};
void* shared_memory(SharedSlot& slot, size_t size, size_t alignment);
void* dynamic_shared_memory();
// Whether these bytes lie in shared memory that the running block has asked for.
bool is_shared(const void* pointer, size_t bytes);

// "kernel k, block (0,0,0), thread (0,0,0)" of the running thread, or "".
std::string running_place();

}  // namespace simt
