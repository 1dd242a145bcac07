// Device memory: which ranges are allocated, and the check of every access by a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace simt {

struct Allocation {
  uintptr_t begin = 0;
  size_t size = 0;        // requested bytes
  bool live = false;      // between its allocation and its release in stream order
  bool pages = false;     // has pages of its own, which can be closed
  bool ordered = false;   // allocated in stream order (cudaMallocAsync)
  uint64_t freed_at = 0;  // operation number; 0: not freed
};

enum class Access : uint8_t { kLoad, kStore, kAtomic };

// True while this thread runs a kernel.
extern constinit thread_local bool in_kernel_;

// The allocation that holds `pointer`; null outside kernels.
const Allocation* find_allocation(uintptr_t address);
inline const Allocation* home_of(const void* pointer) {
  return in_kernel_ ? find_allocation(reinterpret_cast<uintptr_t>(pointer)) : nullptr;
}

[[noreturn]] void fail_access(const Allocation* home, uintptr_t address, size_t size,
                              Access access);
void count_access(uintptr_t address, size_t size, Access access);

inline void check_access(const Allocation* home, uintptr_t address, size_t size, size_t alignment,
                         Access access) {
  if (home == nullptr || !home->live || address - home->begin >= home->size ||
      home->begin + home->size - address < size || address % alignment != 0) [[unlikely]] {
    fail_access(home, address, size, access);
  }
  count_access(address, size, access);
}

// --- For the runtime, which holds its lock. ---

// Null: out of memory. The memory counts as allocated from now on, and as live after make_live.
Allocation* allocate(size_t bytes, bool ordered = false);
void make_live(Allocation& allocation);         // and poisons it
Allocation* find_to_free(const void* pointer);  // null: not the start of an allocation in use
void release(Allocation& allocation);
// For memory from cudaMalloc that cudaFreeAsync releases: it counts as allocated until the host
// waits for something.
void release_late(Allocation& allocation);
void host_has_waited();
bool is_device(const void* pointer);
size_t allocated_bytes();
size_t device_bytes();

void* allocate_pinned(size_t bytes);
bool free_pinned(void* pointer);
bool is_pinned(const void* pointer);

// If protection is on, opens or closes device memory for this process.
void protect(bool closed);

void next_operation();  // counts the tasks of all streams

}  // namespace simt
