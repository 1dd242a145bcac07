#include "src/device/memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

#include "src/core/formatted.h"
#include "src/device/cuda.h"
#include "src/device/dispatch.h"

namespace tandem {

namespace {

constexpr int64_t kAlignment = 64;

bool is_persistent(MemoryClass memory_class) {
  return memory_class == MemoryClass::kParameters || memory_class == MemoryClass::kGradients ||
         memory_class == MemoryClass::kOptimizer || memory_class == MemoryClass::kMasters;
}

// Sizes that are not persistent are rounded up to a multiple of an eighth of the power of two below
// them. At most 1/8 is lost, and similar shapes share blocks.
int64_t rounded(int64_t bytes, MemoryClass memory_class) {
  const int64_t floor = std::max<int64_t>(bytes, kAlignment);
  const int64_t eighth = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(floor))) / 8;
  const int64_t step = is_persistent(memory_class) ? kAlignment : std::max(kAlignment, eighth);
  return (floor + step - 1) / step * step;
}

int64_t physical_bytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

// Where blocks come from: the heap, unless a derived class says otherwise.
class Source {
 public:
  virtual ~Source() = default;
  virtual Device device() const { return Device::kCpu; }
  virtual std::string_view name() const { return name_of(device()); }
  virtual std::string_view advice() const {
    return "lower train.micro_batch, set train.recompute=block, or use a smaller model";
  }
  virtual int64_t bytes() const { return physical_bytes(); }  // capacity
  virtual bool keeps() const { return true; }                 // the pool keeps freed blocks
  virtual bool is_dry() const { return false; }
  virtual bool is_captured() const { return false; }  // the stream that the memory is made for
  virtual void* allocate(int64_t bytes) {             // null: memory is exhausted
    return std::aligned_alloc(kAlignment, static_cast<size_t>(bytes));
  }
  virtual void release(void* data) { std::free(data); }
  virtual void clear(void* data, int64_t bytes) {
    std::memset(data, 0, static_cast<size_t>(bytes));
  }
};

// Only builds with CUDA make this and Gpu. The system takes the pages from the NUMA node of the
// thread that allocates them, and launch/rank.sh has bound it next to its GPU.
class PinnedHost final : public Source {
 public:
  std::string_view name() const override { return "page-locked host"; }
  std::string_view advice() const override {
    return "the system refuses to lock more; use fewer ranks on this host, or train.offload = none";
  }
  void* allocate(int64_t bytes) override { return cuda::allocate_pinned(bytes); }
  void release(void* data) override { cuda::release_pinned(data); }
};

class Gpu final : public Source {
 public:
  explicit Gpu(CUstream_st* stream) : stream_(stream) {}
  Device device() const override { return Device::kCuda; }
  bool keeps() const override { return keeps_; }
  bool is_captured() const override { return cuda::is_capturing(stream_); }
  int64_t bytes() const override { return cuda::device_bytes().all; }
  void* allocate(int64_t bytes) override {
    return keeps_ ? cuda::allocate(bytes) : cuda::allocate(bytes, stream_);
  }
  void release(void* data) override { keeps_ ? cuda::release(data) : cuda::release(data, stream_); }
  void clear(void* data, int64_t bytes) override {
    cuda::zero(data, bytes, stream_);
    cuda::synchronize(stream_);
  }

 private:
  CUstream_st* stream_;
  bool keeps_ = Memory::keeps_gpu_blocks();
};

// The memory of dry streams. No process has these addresses, so touching one crashes.
class Addresses final : public Source {
 public:
  explicit Addresses(Device device) : device_(device) {}
  Device device() const override { return device_; }
  bool keeps() const override { return device_ == Device::kCpu || Memory::keeps_gpu_blocks(); }
  bool is_dry() const override { return true; }
  int64_t bytes() const override { return std::numeric_limits<int64_t>::max(); }
  void* allocate(int64_t bytes) override {
    void* data = reinterpret_cast<void*>(next_);
    next_ += static_cast<uintptr_t>(bytes + kAlignment - 1) / kAlignment * kAlignment;
    return data;
  }
  void release(void*) override {}
  void clear(void*, int64_t) override {}

 private:
  Device device_;
  uintptr_t next_ = uintptr_t{1} << 62;
};

std::unique_ptr<Source> source_of(const Stream& stream) {
  if (stream.is_dry()) {
    return std::make_unique<Addresses>(stream.device());
  }
  if constexpr (kHasCuda) {
    if (stream.device() == Device::kCuda) {
      return std::make_unique<Gpu>(stream.handle());
    }
  }
  return std::make_unique<Source>();
}

void add(MemoryUse& use, int64_t bytes) {
  use.bytes += bytes;
  use.peak_bytes = std::max(use.peak_bytes, use.bytes);
}

}  // namespace

std::string_view name_of(MemoryClass memory_class) {
  constexpr std::array<std::string_view, kMemoryClasses> kNames = {
      "parameters", "gradients",   "optimizer", "masters",
      "staging",    "activations", "workspace", "data"};
  return kNames[static_cast<size_t>(memory_class)];
}

int64_t offloaded_bytes(const Memory& host) {
  return host.use(MemoryClass::kMasters).peak_bytes + host.use(MemoryClass::kOptimizer).peak_bytes +
         host.use(MemoryClass::kActivations).peak_bytes;
}

std::string format_bytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return formatted(unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

class MemoryPool {
 public:
  MemoryPool(std::unique_ptr<Source> source, int64_t limit_bytes)
      : source_(std::move(source)),
        limit_bytes_(limit_bytes > 0 ? limit_bytes : source_->bytes()) {}
  ~MemoryPool() {
    trim(free_[false]);
    trim(free_[true]);
  }

  Device device() const { return source_->device(); }
  bool is_dry() const { return source_->is_dry(); }

  // Returns the block and its size.
  std::pair<void*, int64_t> allocate(int64_t bytes, MemoryClass memory_class, bool is_scratch) {
    const int64_t size =
        source_->keeps() ? rounded(bytes, memory_class) : std::max<int64_t>(bytes, 1);
    std::lock_guard lock(mutex_);
    void* data = reuse(free_[is_scratch], size);
    if (!data) {
      require(!source_->is_captured(), [&] {
        return str("a step that is captured takes new memory: ", format_bytes(bytes), " for ",
                   name_of(memory_class));
      });
      const auto fits = [&] { return total_.bytes + cached_bytes_ + size <= limit_bytes_; };
      if (!fits()) {
        trim();
      }
      data = fits() ? source_->allocate(size) : nullptr;
      if (!data && fits()) {  // the system has less than the limit
        trim();
        data = source_->allocate(size);
      }
      if (!data) {
        fail_out_of_memory(bytes, memory_class);
      }
      ++system_allocations_;
    }
    add(use_[static_cast<size_t>(memory_class)], size);
    add(total_, size);
    scratch_bytes_[static_cast<size_t>(memory_class)] += is_scratch ? size : 0;
    reserved_bytes_ = std::max(reserved_bytes_, total_.bytes + cached_bytes_);
    return {data, size};
  }

  void release(void* data, int64_t bytes, MemoryClass memory_class, bool is_scratch) {
    std::lock_guard lock(mutex_);
    use_[static_cast<size_t>(memory_class)].bytes -= bytes;
    scratch_bytes_[static_cast<size_t>(memory_class)] -= is_scratch ? bytes : 0;
    total_.bytes -= bytes;
    if (!source_->keeps()) {
      source_->release(data);
      return;
    }
    cached_bytes_ += bytes;
    std::vector<void*>& blocks = free_[is_scratch][bytes];
    blocks.push_back(data);
    std::ranges::push_heap(blocks, std::greater{});
  }

  void clear(void* data, int64_t bytes) { source_->clear(data, bytes); }

  void keep_scratch() {
    std::lock_guard lock(mutex_);
    keeps_scratch_ = true;
  }

  std::string held(bool only_scratch) const {
    std::lock_guard lock(mutex_);
    return held_by_class(only_scratch);
  }
  MemoryUse use(MemoryClass memory_class) const {
    std::lock_guard lock(mutex_);
    return use_[static_cast<size_t>(memory_class)];
  }
  MemoryUse total() const {
    std::lock_guard lock(mutex_);
    return total_;
  }
  int64_t reserved_bytes() const {
    std::lock_guard lock(mutex_);
    return reserved_bytes_;
  }
  int64_t system_allocations() const {
    std::lock_guard lock(mutex_);
    return system_allocations_;
  }

 private:
  using FreeBlocks =
      std::map<int64_t, std::vector<void*>>;  // by rounded size; heaps, the lowest address first

  // Takes the free block with the lowest address. The same work then gets the same memory every
  // time, in whatever order blocks were freed.
  void* reuse(FreeBlocks& free, int64_t size) {
    const auto found = free.find(size);
    if (found == free.end() || found->second.empty()) {
      return nullptr;
    }
    std::vector<void*>& blocks = found->second;
    std::ranges::pop_heap(blocks, std::greater{});
    void* data = blocks.back();
    blocks.pop_back();
    cached_bytes_ -= size;
    return data;
  }

  void trim() {
    trim(free_[false]);
    if (!keeps_scratch_) {
      trim(free_[true]);
    }
  }
  void trim(FreeBlocks& free) {
    for (auto& [size, blocks] : free) {
      for (void* block : blocks) {
        source_->release(block);
      }
      cached_bytes_ -= size * std::ssize(blocks);
      blocks.clear();
    }
  }

  std::string held_by_class(bool only_scratch) const {
    std::string text;
    for (size_t i = 0; i < kMemoryClasses; ++i) {
      const int64_t bytes = only_scratch ? scratch_bytes_[i] : use_[i].bytes;
      if (bytes > 0) {
        text += str(text.empty() ? "" : ", ", name_of(static_cast<MemoryClass>(i)), " ",
                    format_bytes(bytes));
      }
    }
    return text;
  }

  [[noreturn]] void fail_out_of_memory(int64_t bytes, MemoryClass memory_class) const;

  std::unique_ptr<Source> source_;
  int64_t limit_bytes_;
  mutable std::mutex mutex_;
  std::array<MemoryUse, kMemoryClasses> use_{};
  MemoryUse total_;
  int64_t cached_bytes_ = 0, reserved_bytes_ = 0;
  int64_t system_allocations_ = 0;
  std::array<int64_t, kMemoryClasses> scratch_bytes_{};  // in use, a part of use_
  std::array<FreeBlocks, 2> free_;                       // of scratch(): the second
  bool keeps_scratch_ = false;
};

void MemoryPool::fail_out_of_memory(int64_t bytes, MemoryClass memory_class) const {
  const std::string in_use = held_by_class(false);
  fail(ExitCode::kOutOfMemory, "out of ", source_->name(), " memory: wanted ", format_bytes(bytes),
       " for ", name_of(memory_class), "; held: ", in_use.empty() ? "nothing" : in_use, "; limit ",
       format_bytes(limit_bytes_), "; ", source_->advice());
}

Storage::Storage(std::shared_ptr<MemoryPool> owner, void* data, int64_t bytes,
                 MemoryClass memory_class, bool is_scratch)
    : owner_(std::move(owner)),
      data_(data),
      bytes_(bytes),
      memory_class_(memory_class),
      is_scratch_(is_scratch) {}
Storage::~Storage() { owner_->release(data_, bytes_, memory_class_, is_scratch_); }
Device Storage::device() const { return owner_->device(); }
void Storage::clear() { owner_->clear(data_, bytes_); }
bool Storage::is_dry() const { return owner_->is_dry(); }

Memory::Memory(Device device, int64_t limit_bytes)
    : pool_(std::make_shared<MemoryPool>(std::make_unique<Source>(), limit_bytes)) {
  require(device == Device::kCpu, "Memory: GPU memory is made for a stream");
}

Memory::Memory(const Stream& stream, int64_t limit_bytes)
    : pool_(std::make_shared<MemoryPool>(source_of(stream), limit_bytes)) {}

bool Memory::keeps_gpu_blocks() {
  const char* cache = std::getenv("TANDEM_MEMORY_CACHE");
  return !cache || std::string_view(cache) != "0";
}

Memory Memory::pinned() {
  if constexpr (kHasCuda) {
    return Memory(std::make_shared<MemoryPool>(std::make_unique<PinnedHost>(), 0));
  }
  fail(ExitCode::kInternal, "Memory::pinned: this build has no CUDA");
}

std::shared_ptr<Storage> Memory::allocate(int64_t bytes, MemoryClass memory_class) {
  const auto [data, size] = pool_->allocate(bytes, memory_class, is_scratch_);
  return std::make_shared<Storage>(pool_, data, size, memory_class, is_scratch_);
}

Memory Memory::scratch() const {
  Memory scratch(pool_);
  scratch.is_scratch_ = true;
  return scratch;
}

void Memory::keep_blocks() {
  require(is_scratch_, "Memory::keep_blocks is for scratch()");
  pool_->keep_scratch();
}

std::string Memory::held() const { return pool_->held(is_scratch_); }

Device Memory::device() const { return pool_->device(); }
bool Memory::is_dry() const { return pool_->is_dry(); }
MemoryUse Memory::use(MemoryClass memory_class) const { return pool_->use(memory_class); }
MemoryUse Memory::total() const { return pool_->total(); }
int64_t Memory::reserved_bytes() const { return pool_->reserved_bytes(); }
int64_t Memory::system_allocations() const { return pool_->system_allocations(); }

}  // namespace tandem
