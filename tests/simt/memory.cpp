#include "tests/simt/memory.h"

#include <sys/mman.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "tests/simt/settings.h"
#include "tests/simt/simt.h"
#include "tests/simt/streams/stream.h"

namespace simt {

constinit thread_local bool in_kernel_ = false;

namespace {

constexpr size_t kAlignment = 256, kRedZone = 256;
constexpr size_t kQuarantineBytes = size_t{32} << 20, kQuarantineEntries = 4096;

struct Memory {
  std::map<uintptr_t, Allocation> device;  // by first byte; freed ones stay while in quarantine
  std::deque<uintptr_t> quarantine;        // freed ones, oldest first, so that late uses are named
  size_t quarantine_bytes = 0;
  size_t allocated = 0;
  size_t late = 0;  // part of it: released, but counted as allocated until the host waits
  std::map<uintptr_t, size_t> pinned;
  uint64_t operation = 0;
};

Memory& memory() {
  static Memory* memory = new Memory;  // outlives every thread
  return *memory;
}

size_t mapped_bytes(size_t bytes) {
  return (bytes + kRedZone + 2 * kAlignment - 1) / kAlignment * kAlignment;
}

void give_back(const Allocation& allocation) {
  void* data = reinterpret_cast<void*>(allocation.begin);
  if (allocation.pages) {
    munmap(data, mapped_bytes(allocation.size));
  } else {
    std::free(data);
  }
}

void poison(const Allocation& allocation) {
  std::memset(reinterpret_cast<void*>(allocation.begin), settings().poison,
              allocation.size + kRedZone);
}

void set_access(const Allocation& allocation, bool open) {
  if (allocation.pages) {
    mprotect(reinterpret_cast<void*>(allocation.begin), mapped_bytes(allocation.size),
             open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

std::string describe(const Allocation* home, uintptr_t address) {
  char text[200];
  if (home == nullptr) {
    std::snprintf(text, sizeof text, "address 0x%zx is in no device allocation", address);
    return text;
  }
  std::snprintf(text, sizeof text, "address 0x%zx is at offset %td of an allocation of %zu bytes",
                address, static_cast<ptrdiff_t>(address - home->begin), home->size);
  std::string result = text;
  if (home->freed_at != 0) {
    result += ", freed " + std::to_string(memory().operation - home->freed_at) + " operations ago";
  } else if (!home->live) {
    result += ", which its stream has not allocated yet";
  }
  return result;
}

// Null when [address, address + bytes) lies in `home` and may be used; otherwise what is wrong.
const char* fault(const Allocation* home, uintptr_t address, size_t bytes) {
  if (home != nullptr && home->freed_at != 0) {
    return "use after free";
  }
  if (home != nullptr && !home->live) {
    return "use before allocation";
  }
  if (home == nullptr || address - home->begin > home->size ||
      home->begin + home->size - address < bytes) {
    return "out of bounds";
  }
  return nullptr;
}

// Reports the host's access to closed device memory. The access goes on if the failure is caught.
void on_fault(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const Allocation* home = find_allocation(address);
  if (home == nullptr) {
    std::signal(SIGSEGV, SIG_DFL);  // another cause: let it fault again
    return;
  }
  set_access(*home, true);
  try {
    fail("host access to device memory", describe(home, address));
  } catch (const Failure& failure) {
    fail_later(failure.what());
  }
}

bool catch_host_access() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGSEGV, &action, nullptr) == 0;
}

}  // namespace

const Allocation* find_allocation(uintptr_t address) {
  const auto& device = memory().device;
  auto after = device.upper_bound(address);
  if (after == device.begin()) {
    return nullptr;
  }
  const Allocation& allocation = std::prev(after)->second;
  return address - allocation.begin < allocation.size + kRedZone ? &allocation : nullptr;
}

void fail_access(const Allocation* home, uintptr_t address, size_t size, Access access) {
  const char* verb = access == Access::kLoad    ? "load"
                     : access == Access::kStore ? "store"
                                                : "atomic";
  if (home == nullptr) {
    home = find_allocation(address);
  }
  const char* what = fault(home, address, size);
  fail(std::string(what == nullptr ? "unaligned" : what) + " " + verb,
       std::to_string(size) + " bytes; " + describe(home, address));
}

void check_range(const void* pointer, size_t bytes, const char* what) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const Allocation* home = find_allocation(address);
  const char* wrong = bytes == 0 ? nullptr : fault(home, address, bytes);
  if (wrong != nullptr) {
    fail(std::string(wrong) + ", " + what,
         std::to_string(bytes) + " bytes; " + describe(home, address));
  }
}

bool in_kernel() { return in_kernel_; }

Allocation* allocate(size_t bytes, bool ordered) {
  if (memory().allocated + bytes > settings().memory) {
    return nullptr;
  }
  const bool pages = settings().protect;
  void* data = pages ? mmap(nullptr, mapped_bytes(bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                     : std::aligned_alloc(kAlignment, mapped_bytes(bytes));
  if (data == nullptr || data == MAP_FAILED) {
    return nullptr;
  }
  memory().allocated += bytes;
  ++counters().device_allocations;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return &(
      memory().device[begin] = {.begin = begin, .size = bytes, .pages = pages, .ordered = ordered});
}

void make_live(Allocation& allocation) {
  allocation.live = true;
  poison(allocation);
}

Allocation* find_to_free(const void* pointer) {
  auto found = memory().device.find(reinterpret_cast<uintptr_t>(pointer));
  return found == memory().device.end() ? nullptr : &found->second;
}

void release(Allocation& allocation) {
  Memory& m = memory();
  if (allocation.freed_at != 0) {
    fail("double free", describe(&allocation, allocation.begin));
  }
  poison(allocation);
  if (settings().protect) {
    set_access(allocation, false);  // from now on
  }
  allocation.live = false;
  allocation.freed_at = m.operation;
  m.allocated -= allocation.size;
  m.quarantine.push_back(allocation.begin);
  m.quarantine_bytes += allocation.size;
  while (m.quarantine_bytes > kQuarantineBytes || m.quarantine.size() > kQuarantineEntries) {
    auto oldest = m.device.find(m.quarantine.front());
    m.quarantine.pop_front();
    m.quarantine_bytes -= oldest->second.size;
    give_back(oldest->second);
    m.device.erase(oldest);
  }
}

void release_late(Allocation& allocation) {
  const size_t bytes = allocation.size;
  release(allocation);
  memory().allocated += bytes;
  memory().late += bytes;
}

void host_has_waited() { memory().allocated -= std::exchange(memory().late, 0); }

bool is_device(const void* pointer) {
  return find_allocation(reinterpret_cast<uintptr_t>(pointer)) != nullptr;
}
size_t allocated_bytes() { return memory().allocated; }
size_t device_bytes() { return settings().memory; }

void* allocate_pinned(size_t bytes) {
  size_t taken = bytes;
  for (const auto& [address, size] : memory().pinned) {
    taken += size;
  }
  if (settings().pinned > 0 && taken > settings().pinned) {
    return nullptr;
  }
  void* pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (pointer != nullptr) {
    std::memset(pointer, settings().poison, bytes);
    memory().pinned[reinterpret_cast<uintptr_t>(pointer)] = bytes;
  }
  return pointer;
}

bool free_pinned(void* pointer) {
  const bool known = memory().pinned.erase(reinterpret_cast<uintptr_t>(pointer)) != 0;
  if (known) {
    std::free(pointer);
  }
  return known;
}

bool is_pinned(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto after = memory().pinned.upper_bound(address);
  return after != memory().pinned.begin() &&
         address - std::prev(after)->first < std::prev(after)->second;
}

void protect(bool closed) {
  if (settings().protect) {
    static const bool installed = catch_host_access();
    static_cast<void>(installed);
    for (const auto& [begin, allocation] : memory().device) {
      if (allocation.freed_at == 0) {
        set_access(allocation, !closed);
      }
    }
  }
}

void set_protect(bool on) {
  protect(false);
  settings().protect = on;
}

void next_operation() { ++memory().operation; }

}  // namespace simt
