#include "src/core/memory.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

#include "src/core/error.h"

namespace tandem {

namespace {

constexpr int64_t kAlignment = 64;

// Sizes are rounded up to an eighth of their power of two: at most 1/8 is lost, and similar shapes
// share blocks.
int64_t rounded(int64_t bytes) {
  const int64_t floor = std::max<int64_t>(bytes, kAlignment);
  const int64_t step = std::max<int64_t>(
      kAlignment, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(floor))) / 8);
  return (floor + step - 1) / step * step;
}

int64_t physical_bytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

void add(MemoryUse& use, int64_t bytes) {
  use.bytes += bytes;
  use.peak_bytes = std::max(use.peak_bytes, use.bytes);
}

}  // namespace

std::string_view name_of(MemoryClass memory_class) {
  constexpr std::array<std::string_view, kMemoryClasses> kNames = {
      "parameters", "gradients", "optimizer", "staging", "activations", "workspace", "data"};
  return kNames[static_cast<size_t>(memory_class)];
}

std::string format_bytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

Storage::Storage(Memory& owner, void* data, int64_t bytes, MemoryClass memory_class)
    : owner_(owner), data_(data), bytes_(bytes), memory_class_(memory_class) {}
Storage::~Storage() { owner_.release(data_, bytes_, memory_class_); }
Device Storage::device() const { return owner_.device(); }

Memory::Memory(Device device, int64_t limit_bytes)
    : device_(device), limit_bytes_(limit_bytes > 0 ? limit_bytes : physical_bytes()) {
  require(device == Device::kCpu, "Memory: this build has no such device");
}

Memory::~Memory() { trim(); }

std::shared_ptr<Storage> Memory::allocate(int64_t bytes, MemoryClass memory_class) {
  const int64_t size = rounded(bytes);
  std::lock_guard lock(mutex_);
  void* data = nullptr;
  if (auto found = free_.find(size); found != free_.end() && !found->second.empty()) {
    data = found->second.back();
    found->second.pop_back();
    cached_bytes_ -= size;
  } else {
    if (total_.bytes + cached_bytes_ + size > limit_bytes_) {
      trim();
    }
    if (total_.bytes + size <= limit_bytes_) {
      data = std::aligned_alloc(kAlignment, static_cast<size_t>(size));
    }
    if (!data) {
      fail_out_of_memory(bytes, memory_class);
    }
    ++system_allocations_;
  }
  add(use_[static_cast<size_t>(memory_class)], size);
  add(total_, size);
  return std::make_shared<Storage>(*this, data, size, memory_class);
}

void Memory::release(void* data, int64_t bytes, MemoryClass memory_class) {
  std::lock_guard lock(mutex_);
  use_[static_cast<size_t>(memory_class)].bytes -= bytes;
  total_.bytes -= bytes;
  cached_bytes_ += bytes;
  free_[bytes].push_back(data);
}

void Memory::trim() {
  for (auto& [size, blocks] : free_) {
    for (void* block : blocks) {
      std::free(block);
    }
    blocks.clear();
  }
  cached_bytes_ = 0;
}

void Memory::fail_out_of_memory(int64_t bytes, MemoryClass memory_class) const {
  std::string held;
  for (int i = 0; i < kMemoryClasses; ++i) {
    if (use_[i].bytes > 0) {
      held += str(held.empty() ? "" : ", ", name_of(static_cast<MemoryClass>(i)), " ",
                  format_bytes(use_[i].bytes));
    }
  }
  fail(ExitCode::kOutOfMemory,
       str("out of ", name_of(device_), " memory: wanted ", format_bytes(bytes), " for ",
           name_of(memory_class), "; held: ", held.empty() ? "nothing" : held, "; limit ",
           format_bytes(limit_bytes_),
           "; lower train.micro_batch, set train.recompute=block, or use a smaller model"));
}

MemoryUse Memory::use(MemoryClass memory_class) const {
  std::lock_guard lock(mutex_);
  return use_[static_cast<size_t>(memory_class)];
}

MemoryUse Memory::total() const {
  std::lock_guard lock(mutex_);
  return total_;
}

int64_t Memory::system_allocations() const {
  std::lock_guard lock(mutex_);
  return system_allocations_;
}

}  // namespace tandem
