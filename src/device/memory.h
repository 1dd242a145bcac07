// Memory of tensors: blocks with a class, a pool that reuses them, and statistics by class.
//
// Persistent blocks (parameters, gradients, optimizer state, masters) take what they need, up to
// the alignment. Other blocks live for a step (activations, staging) or for a call (workspace).
// Their sizes are rounded up more, so that similar sizes share blocks. The pool keeps freed blocks
// by size, so after the first step a training step takes nothing from the system.
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

// One block of memory, aligned to 64 bytes. It returns to its pool when the last owner is
// destroyed.
class Storage {
 public:
  Storage(std::shared_ptr<MemoryPool> owner, void* data, int64_t bytes, MemoryClass memory_class,
          bool is_scratch);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  void* data() const { return data_; }
  Device device() const;
  bool is_dry() const;  // an address without memory
  // Sets all bytes to zero, after the work queued on the stream that the memory was made for.
  // Blocks the host until this is done, so that any stream may use the block next.
  void clear();

 private:
  std::shared_ptr<MemoryPool> owner_;
  void* data_;
  int64_t bytes_;
  MemoryClass memory_class_;
  bool is_scratch_;
};

// The memory of one device. Thread safe. Blocks may outlive it.
//
// GPU memory is ordered by the compute stream it was made for: a freed block may serve later work
// of that stream at once. So the stream must wait for all uses on other streams before a block is
// freed. With TANDEM_MEMORY_CACHE=0 in the environment the pool keeps no GPU blocks: CUDA allocates
// and frees each block in stream order. Compute-sanitizer and the emulated GPU then see each use
// before the allocation or after the free.
class Memory {
 public:
  // Memory of the CPU. `limit_bytes`: largest total; 0: the machine's physical memory.
  explicit Memory(Device device, int64_t limit_bytes = 0);
  // Memory of the stream's device. The stream must outlive every block. The memory of a dry stream
  // is dry too: its blocks are addresses without memory, which nobody may touch, and without
  // `limit_bytes` there is no limit. Sizes, reuse and statistics are as on the device.
  explicit Memory(const Stream& stream, int64_t limit_bytes = 0);
  // Whether memory of GPUs keeps freed blocks: not with TANDEM_MEMORY_CACHE=0.
  static bool keeps_gpu_blocks();
  // Page-locked memory of the host: GPUs copy from and to it without waiting for the host.
  static Memory pinned();
  // A part of this memory, for what begins and ends inside a step. Limit and statistics are those
  // of the whole, but free blocks of the part serve only the part. So equal steps get equal
  // addresses, whatever lasts between them.
  Memory scratch() const;
  // From now on free blocks of scratch() are never returned to the system, because a graph uses
  // them. Only scratch() may call it.
  void keep_blocks();

  // Contents are undefined. Throws Error(kOutOfMemory); the message says what was requested and
  // what holds the memory.
  std::shared_ptr<Storage> allocate(int64_t bytes, MemoryClass memory_class);
  Device device() const;
  bool is_dry() const;
  MemoryUse use(MemoryClass memory_class) const;
  MemoryUse total() const;
  // The most that was taken from the system at once: blocks in use and free ones.
  int64_t reserved_bytes() const;
  // What is in use, by class: "activations 1.5 MiB, workspace 64 B"; empty if nothing is. For
  // scratch() it is what scratch() has given out.
  std::string held() const;
  // Blocks taken from the system so far; constant while the pool serves every request.
  int64_t system_allocations() const;

 private:
  explicit Memory(std::shared_ptr<MemoryPool> pool) : pool_(std::move(pool)) {}
  std::shared_ptr<MemoryPool> pool_;
  bool is_scratch_ = false;
};

// What rests in the host's memory, so that the device has room for more: masters, optimizer state
// and activations, each at its peak. `host`: memory that has nothing else of these classes.
int64_t offloaded_bytes(const Memory& host);

std::string format_bytes(int64_t bytes);  // "12.3 MiB"

}  // namespace tandem
