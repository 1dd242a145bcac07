#include "tests/simt/shared.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/simt/block.h"
#include "tests/simt/launch.h"
#include "tests/simt/memory.h"
#include "tests/simt/simt.h"

namespace simt {

namespace {

constexpr int kLanes = 32;

// The n-th access of a warp's lanes.
struct WarpAccess {
  std::array<uintptr_t, kLanes> addresses{};  // 0: this lane has not made it
  int lanes = 0;                              // that have
  size_t bytes = 0;
};

// What a warp has done at one place in the code.
struct WarpPlace {
  std::array<int64_t, kLanes> accesses{};  // of each lane, so far
  int64_t first = 0;                       // number of the first of `open`
  std::deque<WarpAccess> open;
};

// A warp, and the file, line and column.
using PlaceOfWarp = std::tuple<int, std::string_view, uint32_t, uint32_t>;

struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
};

struct Thread {
  std::vector<std::vector<Copy>> groups;  // committed
  std::vector<Copy> next;
};

// What has happened in one block.
struct Block {
  uint64_t number = 0;
  std::map<PlaceOfWarp, WarpPlace> warps;
  std::array<Thread, 1024> threads;
};

void count(const WarpAccess& access) {
  const int together = access.bytes <= 4 ? kLanes : static_cast<int>(128 / access.bytes);
  for (int first = 0; first < kLanes; first += together) {
    counters().bank_conflicts += bank_conflicts(&access.addresses[first], together, access.bytes);
  }
}

Block& block() {
  static Block* block = new Block;
  if (block->number != block_number()) {
    for (const auto& [of, warp] : block->warps) {
      for (const WarpAccess& access : warp.open) {
        count(access);
      }
    }
    *block = {};
    block->number = block_number();
  }
  return *block;
}

void perform(const Copy& copy) {
  if (copy.from != nullptr) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  } else {
    std::memset(copy.to, 0, copy.bytes);
  }
}

}  // namespace

int bank_conflicts(const uintptr_t* addresses, int lanes, size_t bytes) {
  std::array<std::array<uintptr_t, kLanes>, 32> words;  // by bank
  std::array<int, 32> used{};
  for (int lane = 0; lane < lanes; ++lane) {
    const uintptr_t end = addresses[lane] == 0 ? 0 : addresses[lane] + bytes;
    for (uintptr_t word = addresses[lane] / 4; word * 4 < end; ++word) {
      auto& in_bank = words[word % 32];
      int& n = used[word % 32];
      if (std::find(in_bank.begin(), in_bank.begin() + n, word) == in_bank.begin() + n) {
        in_bank[n++] = word;
      }
    }
  }
  return std::max(*std::max_element(used.begin(), used.end()) - 1, 0);
}

void access_shared(const void* pointer, size_t bytes, Place place) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (!is_shared(pointer, bytes)) {
    fail("access outside shared memory", std::to_string(bytes) + " bytes");
  }
  if (address % bytes != 0) {
    fail("unaligned access of shared memory", std::to_string(bytes) + " bytes");
  }
  WarpPlace& warp =
      block().warps[{thread_number() / kLanes, place.file_name(), place.line(), place.column()}];
  const int64_t n = warp.accesses[thread_number() % kLanes]++;
  while (n - warp.first >= static_cast<int64_t>(warp.open.size())) {
    warp.open.emplace_back();
  }
  WarpAccess& access = warp.open[n - warp.first];
  access.addresses[thread_number() % kLanes] = address;
  ++access.lanes;
  access.bytes = std::max(access.bytes, bytes);
  while (!warp.open.empty() && warp.open.front().lanes == kLanes) {
    count(warp.open.front());
    warp.open.pop_front();
    ++warp.first;
  }
}

void copy_async(void* to, const void* from, size_t bytes, bool valid, Place place) {
  access_shared(to, bytes, place);
  const Copy copy{to, valid ? from : nullptr, bytes};
  if (!settings().late_copies) {
    perform(copy);
    return;
  }
  std::memset(to, settings().poison, bytes);
  block().threads[thread_number()].next.push_back(copy);
}

void copies_commit() {
  Thread& thread = block().threads[thread_number()];
  thread.groups.push_back(std::move(thread.next));
  thread.next.clear();
}

void copies_wait(int pending) {
  auto& groups = block().threads[thread_number()].groups;
  while (static_cast<int>(groups.size()) > pending) {
    std::for_each(groups.front().begin(), groups.front().end(), perform);
    groups.erase(groups.begin());
  }
}

}  // namespace simt
