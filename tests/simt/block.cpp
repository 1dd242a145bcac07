#include "tests/simt/block.h"

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "tests/simt/memory.h"
#include "tests/simt/simt.h"

constinit thread_local uint3 threadIdx = {0, 0, 0};
constinit thread_local uint3 blockIdx = {0, 0, 0};
constinit thread_local dim3 blockDim;
constinit thread_local dim3 gridDim;

namespace simt {

namespace {

namespace context = boost::context::detail;
using context::fcontext_t;

constexpr int kWarp = 32, kMaxThreads = 1024;
constexpr size_t kStackBytes = 128 * 1024, kPage = 4096;
constexpr size_t kLeastStack = kStackBytes - 32 * 1024;

// What a thread waits in, the lanes that must join (0: the whole block), and where.
struct Wait {
  const char* operation;
  unsigned mask;
  Place place;
  bool operator==(const Wait& other) const {
    return operation == other.operation && mask == other.mask &&
           place.line() == other.place.line() && place.file_name() == other.place.file_name();
  }
};

// The state of 32 threads, one bit each. `waiting` threads wait for other lanes; a thread in none
// of these sets waits for the block.
struct Warp {
  unsigned ready, waiting, returned;
  std::vector<uintptr_t> sectors;  // by n: the sector that a lane's n-th access touched last
};

struct Thread {
  uint3 index;
  Warp* warp;
  int lane;
  Wait wait;
  bool predicate;          // for the block's barrier
  uint64_t value, result;  // input and output of the warp's operation
  int source;
  uint32_t accesses;  // of global memory, so far
  fcontext_t fiber;   // null: not started
  char* stack;        // its upper end
};

struct Block {
  const std::function<void()>* body = nullptr;
  Random* random = nullptr;
  ThreadOrder order = ThreadOrder::kForward;
  int count = 0, returned = 0, arrived = 0;
  int predicates = 0;         // number of true predicates at the last barrier
  Thread* thread = nullptr;   // running
  int warp = 0;               // whose turn it is
  unsigned lanes_left = 0;    // of this warp's turn
  unsigned warps_left = 0;    // of this round
  bool progress = false;      // some thread ran in this round
  fcontext_t main = nullptr;  // run_block, while threads run
  std::exception_ptr error;
  std::vector<Thread> threads = std::vector<Thread>(kMaxThreads);
  std::vector<Warp> warps = std::vector<Warp>(kMaxThreads / kWarp);
  std::vector<char*> stacks;  // free
};

Block& block = *new Block;  // outlives every thread

unsigned bit_of(const Thread& thread) { return 1u << thread.lane; }

// All of the bits below `count`, for count in [1, 32].
unsigned first_bits(int count) { return ~0u >> (kWarp - count); }

// Removes from `set` the bit that the schedule wants next, and returns it.
int take_next(unsigned& set) {
  int bit = std::countr_zero(set);
  if (block.order == ThreadOrder::kBackward) {
    bit = kWarp - 1 - std::countl_zero(set);
  } else if (block.order == ThreadOrder::kShuffled) {
    unsigned rest = set;
    for (int skip = block.random->below(std::popcount(set)); skip > 0; --skip) {
      rest &= rest - 1;
    }
    bit = std::countr_zero(rest);
  }
  set &= ~(1u << bit);
  return bit;
}

// The thread that runs next. A warp runs as far as it can without other warps. Null: none can run.
Thread* next_thread() {
  for (;;) {
    if (block.lanes_left == 0) {
      block.lanes_left = block.warps[block.warp].ready;
    }
    if (block.lanes_left != 0) {
      block.progress = true;
      return &block.threads[block.warp * kWarp + take_next(block.lanes_left)];
    }
    if (block.warps_left == 0) {
      if (!std::exchange(block.progress, false)) {
        return nullptr;
      }
      block.warps_left = first_bits((block.count + kWarp - 1) / kWarp);
    }
    block.warp = take_next(block.warps_left);
  }
}

// The upper end of a new stack. Each stack begins a little lower in its pages than the previous
// one, so that they do not all compete for the same few cache lines.
char* make_stack() {
  constexpr size_t kStep = 7 * 64, kSteps = 64;
  static size_t made = 0;
  void* pages =
      mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED || mprotect(pages, kPage, PROT_NONE) != 0) {
    fail("no memory for the stack of a thread");
  }
  return static_cast<char*>(pages) + kStackBytes - made++ % kSteps * kStep;
}

char* take_stack() {
  std::vector<char*>& stacks = block.stacks;
  if (stacks.empty()) {
    return make_stack();
  }
  char* stack = stacks.back();
  stacks.pop_back();
  return stack;
}

void become(Thread& thread) {
  block.thread = &thread;
  threadIdx = thread.index;
  thread.warp->ready &= ~bit_of(thread);
}

// The argument of each switch is where to keep the fiber that is left.
void keep_left_fiber(context::transfer_t from) { *static_cast<fcontext_t*>(from.data) = from.fctx; }

void fiber_main(context::transfer_t from);

// Leaves the running fiber, keeps it in `left`, and continues `next` (null: run_block).
void switch_to(Thread* next, fcontext_t& left) {
  fcontext_t to = block.main;
  block.thread = nullptr;
  if (next != nullptr) {
    if (next->fiber == nullptr) {
      next->stack = take_stack();
      next->fiber = context::make_fcontext(next->stack, kLeastStack, fiber_main);
    }
    to = next->fiber;
    become(*next);
  }
  keep_left_fiber(context::jump_fcontext(to, &left));
}

// Runs one thread, and after it other threads that have not started yet.
void fiber_main(context::transfer_t from) {
  keep_left_fiber(from);
  for (;;) {
    try {
      (*block.body)();
    } catch (...) {
      block.error = std::current_exception();
    }
    Thread& thread = *block.thread;
    thread.warp->returned |= bit_of(thread);
    ++block.returned;
    Thread* next = block.error ? nullptr : next_thread();
    if (next == nullptr || next->fiber != nullptr) {
      block.stacks.push_back(thread.stack);  // not taken again before this fiber is left for good
      switch_to(next, thread.fiber);
    }
    next->stack = thread.stack;
    become(*next);
  }
}

void yield() {
  Thread& thread = *block.thread;
  Thread* next = next_thread();
  if (next == &thread) {
    become(thread);
  } else {
    switch_to(next, thread.fiber);
  }
}

// Gives every thread its index, and resets the state of the previous block, which may have ended in
// an exception.
void start_block() {
  block.count = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
  block.returned = block.arrived = 0;
  block.lanes_left = 0;
  block.warps_left = first_bits((block.count + kWarp - 1) / kWarp);
  block.warp = take_next(block.warps_left);
  block.progress = true;
  for (int first = 0; first < block.count; first += kWarp) {
    Warp& warp = block.warps[first / kWarp];
    warp.ready = first_bits(std::min(kWarp, block.count - first));
    warp.waiting = warp.returned = 0;
    warp.sectors.clear();
  }
  uint3 index = {0, 0, 0};
  for (int i = 0; i < block.count; ++i) {
    Thread& thread = block.threads[i];
    thread.index = index;
    thread.warp = &block.warps[i / kWarp];
    thread.lane = i % kWarp;
    thread.accesses = 0;
    thread.fiber = nullptr;
    thread.stack = nullptr;
    index.x = index.x + 1 == blockDim.x ? 0 : index.x + 1;
    index.y = index.x != 0 ? index.y : index.y + 1 == blockDim.y ? 0 : index.y + 1;
    index.z += index.x == 0 && index.y == 0;
  }
}

bool has_returned(const Thread& thread) { return (thread.warp->returned & bit_of(thread)) != 0; }

// Takes back the stacks of threads that never returned.
void reclaim_stacks() {
  for (int i = 0; i < block.count; ++i) {
    if (block.threads[i].stack != nullptr && !has_returned(block.threads[i])) {
      block.stacks.push_back(block.threads[i].stack);
    }
  }
}

std::string describe(const Thread& thread) {
  if (has_returned(thread)) {
    return "have returned";
  }
  char mask[32] = "";
  if (thread.wait.mask != 0) {
    std::snprintf(mask, sizeof mask, " (mask 0x%08x)", thread.wait.mask);
  }
  return std::string("wait in ") + thread.wait.operation + mask + " at " +
         thread.wait.place.file_name() + ":" + std::to_string(thread.wait.place.line());
}

// Where the threads of a stuck block wait: "threads 0 to 39 wait in ...; 40 to 63 ...".
std::string describe_stuck() {
  std::string description = "threads ";
  int first = 0;
  for (int i = 1; i <= block.count; ++i) {
    if (i == block.count || describe(block.threads[i]) != describe(block.threads[first])) {
      description += (first == 0 ? "" : "; ") + std::to_string(first) + " to " +
                     std::to_string(i - 1) + " " + describe(block.threads[first]);
      first = i;
    }
  }
  constexpr size_t kLongest = 1000;
  return description.size() > kLongest ? description.substr(0, kLongest) + " ..." : description;
}

// Lets the waiting lanes of `mask` go on, if they wait for the same operation.
void complete_exchange(Thread* lanes, unsigned mask, const Wait& wait) {
  uint64_t ballot = 0;
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (lanes[lane].wait != wait) {
      return;
    }
    ballot |= static_cast<uint64_t>(lanes[lane].value != 0) << lane;
  }
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    Thread& thread = lanes[std::countr_zero(rest)];
    thread.result = thread.source == kBallot ? ballot : lanes[thread.source].value;
  }
  lanes->warp->waiting &= ~mask;
  lanes->warp->ready |= mask;
}

Thread& running_thread(const char* operation) {
  if (block.thread == nullptr) {
    fail(std::string(operation) + " outside a kernel");
  }
  return *block.thread;
}

}  // namespace

void run_block(const std::function<void()>& body, Random& random) {
  block.body = &body;
  block.random = &random;
  block.order = settings().threads;
  start_block();
  switch_to(next_thread(), block.main);
  if (block.returned == block.count && !block.error) {
    return;
  }
  reclaim_stacks();
  if (block.error) {
    std::rethrow_exception(std::exchange(block.error, nullptr));
  }
  fail("divergent barrier", describe_stuck());
}

bool in_thread() { return in_kernel_ && block.thread != nullptr; }

int block_barrier(const char* name, bool predicate, Place place) {
  Thread& thread = running_thread(name);
  thread.wait = {name, 0, place};
  thread.predicate = predicate;
  if (++block.arrived == block.count) {
    block.arrived = block.predicates = 0;
    for (int i = 0; i < block.count; ++i) {
      if (block.threads[i].wait != thread.wait) {
        fail("divergent barrier", describe_stuck());
      }
      block.predicates += block.threads[i].predicate;
    }
    for (int first = 0; first < block.count; first += kWarp) {
      block.warps[first / kWarp].ready = first_bits(std::min(kWarp, block.count - first));
    }
  }
  yield();
  return block.predicates;
}

uint64_t warp_exchange(const char* name, unsigned mask, uint64_t value, int source, Place place) {
  Thread& thread = running_thread(name);
  Warp& warp = *thread.warp;
  if ((mask & bit_of(thread)) == 0) {
    fail(std::string(name) + " by a lane outside its mask");
  }
  if (source != kBallot && (mask >> source & 1) == 0) {
    fail(std::string(name) + " from a lane outside its mask", "lane " + std::to_string(source));
  }
  thread.wait = {name, mask, place};
  thread.value = value;
  thread.source = source;
  warp.waiting |= bit_of(thread);
  if ((warp.waiting & mask) == mask) {
    complete_exchange(&thread - thread.lane, mask, thread.wait);
  }
  yield();
  return thread.result;
}

void warp_together(const char* name, void* argument, void (*run)(const WarpArguments&),
                   Place place) {
  Thread& thread = running_thread(name);
  Thread* const lanes = &thread - thread.lane;
  thread.wait = {name, ~0u, place};
  thread.value = reinterpret_cast<uintptr_t>(argument);
  thread.warp->waiting |= bit_of(thread);
  if (thread.warp->waiting == ~0u &&
      std::all_of(lanes, lanes + kWarp, [&](Thread& t) { return t.wait == thread.wait; })) {
    WarpArguments arguments;
    for (int lane = 0; lane < kWarp; ++lane) {
      arguments[lane] = reinterpret_cast<void*>(lanes[lane].value);
    }
    run(arguments);
    std::swap(thread.warp->waiting, thread.warp->ready);
  }
  yield();
}

int thread_number() { return static_cast<int>(block.thread - block.threads.data()); }

int lane_id() { return block.thread->lane; }

unsigned active_lanes() {
  const int first = static_cast<int>(block.thread - block.threads.data()) - block.thread->lane;
  return first_bits(std::min(kWarp, block.count - first)) & ~block.thread->warp->returned;
}

void count_access(uintptr_t address, size_t size, Access access) {
  Thread& thread = *block.thread;
  std::vector<uintptr_t>& sectors = thread.warp->sectors;
  const uint32_t n = thread.accesses++;
  if (n == sectors.size()) {
    sectors.push_back(0);
  }
  if (std::exchange(sectors[n], address / 32) != address / 32) {
    counters().sectors_read += access != Access::kStore;
    counters().sectors_written += access != Access::kLoad;
    counters().narrow_sectors += size < 16;
  }
}

}  // namespace simt
