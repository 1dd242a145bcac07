// Memory of tensors: blocks with a class, a pool that reuses them, and statistics by class.
//
// Three lifetimes: persistent (parameters, gradients, optimizer state, masters), which take what
// they need to the byte; step (activations, staging) and call (workspace), whose sizes are rounded
// up so that similar ones share blocks. The pool keeps freed blocks by size, so that after the
// first step a training step allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "src/device/stream.h"

namespace tandem {

enum class MemoryClass : uint8_t {
  kParameters,
  kGradients,
  kOptimizer,
  kMasters,
  kStaging,
  kActivations,
  kWorkspace,
  kData,
};
inline constexpr int kMemoryClasses = 8;
std::string_view name_of(MemoryClass memory_class);

struct MemoryUse {
  int64_t bytes = 0;       // in use now
  int64_t peak_bytes = 0;  // largest ever in use
};

class MemoryPool;

// One block of bytes, aligned to 64. Given back to its pool when the last owner lets go.
class Storage {
 public:
  Storage(std::shared_ptr<MemoryPool> owner, void* data, int64_t bytes, MemoryClass memory_class);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const;
  bool is_dry() const;  // an address without memory
  // Sets all bytes to zero, after the queued work of the stream that the memory was made for; done
  // on return, so that every stream may go on with it.
  void clear();

 private:
  std::shared_ptr<MemoryPool> owner_;
  void* data_;
  int64_t bytes_;
  MemoryClass memory_class_;
};

// The memory of one device. Thread safe. Blocks may outlive it.
//
// GPU memory is ordered by the compute stream it was made for: a block that was given back serves
// the stream's later work at once. Work on other streams must have been waited for before.
// With TANDEM_MEMORY_CACHE=0 in the environment each GPU block comes from CUDA and goes back to it,
// in the order of the stream, so that compute-sanitizer and the emulated GPU see each use before
// the beginning and after the end.
class Memory {
 public:
  // Of the CPU. `limit_bytes`: largest total, 0 for the machine's physical memory.
  explicit Memory(Device device, int64_t limit_bytes = 0);
  // Of the stream's device, which must outlive every block.
  // A dry stream's is dry too: blocks are addresses without memory behind them, which nobody may
  // touch, and there is no limit; sizes, reuse and statistics are the device's.
  explicit Memory(const Stream& stream, int64_t limit_bytes = 0);
  // Of the host, page-locked: GPUs copy from and to it without waiting for the host.
  static Memory pinned();

  // Contents are undefined. Throws Error(kOutOfMemory) that says what was wanted and what holds the
  // rest.
  std::shared_ptr<Storage> allocate(int64_t bytes, MemoryClass memory_class);
  Device device() const;
  bool is_dry() const;
  MemoryUse use(MemoryClass memory_class) const;
  MemoryUse total() const;
  // Blocks taken from the system so far; constant while the pool serves everything.
  int64_t system_allocations() const;

 private:
  explicit Memory(std::shared_ptr<MemoryPool> pool) : pool_(std::move(pool)) {}
  std::shared_ptr<MemoryPool> pool_;
};

std::string format_bytes(int64_t bytes);  // "12.3 MiB"

}  // namespace tandem
