// Memory of tensors: blocks with a class, a pool that reuses them, and statistics by class.
//
// Three lifetimes, never mixed: persistent (parameters, gradients, optimizer state, staging), step
// (activations) and call (workspace). The pool keeps freed blocks by size, so that after the first
// step a training step allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/device.h"

namespace tandem {

enum class MemoryClass : uint8_t {
  kParameters,
  kGradients,
  kOptimizer,
  kStaging,
  kActivations,
  kWorkspace,
  kData,
};
inline constexpr int kMemoryClasses = 7;
std::string_view name_of(MemoryClass memory_class);

struct MemoryUse {
  int64_t bytes = 0;       // in use now
  int64_t peak_bytes = 0;  // largest ever in use
};

class Memory;

// One block of bytes, aligned to 64. Given back to its Memory when the last owner lets go.
class Storage {
 public:
  Storage(Memory& owner, void* data, int64_t bytes, MemoryClass memory_class);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const;

 private:
  Memory& owner_;
  void* data_;
  int64_t bytes_;
  MemoryClass memory_class_;
};

// The pool of one device. Thread safe.
class Memory {
 public:
  // `limit_bytes`: largest total, 0 for the machine's physical memory.
  explicit Memory(Device device, int64_t limit_bytes = 0);
  ~Memory();  // every block must have come back
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Contents are undefined. Throws Error(kOutOfMemory) that says what was wanted and what holds the
  // rest.
  std::shared_ptr<Storage> allocate(int64_t bytes, MemoryClass memory_class);
  Device device() const { return device_; }
  MemoryUse use(MemoryClass memory_class) const;
  MemoryUse total() const;
  // Blocks taken from the system so far; constant while the pool serves everything.
  int64_t system_allocations() const;

 private:
  friend class Storage;
  void release(void* data, int64_t bytes, MemoryClass memory_class);
  [[noreturn]] void fail_out_of_memory(int64_t bytes, MemoryClass memory_class) const;
  void trim();

  Device device_;
  int64_t limit_bytes_;
  mutable std::mutex mutex_;
  std::array<MemoryUse, kMemoryClasses> use_{};
  MemoryUse total_;
  int64_t cached_bytes_ = 0;
  int64_t system_allocations_ = 0;
  std::map<int64_t, std::vector<void*>> free_;  // by rounded size
};

std::string format_bytes(int64_t bytes);  // "12.3 MiB"

}  // namespace tandem
