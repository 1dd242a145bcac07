// The emulator's settings (see simt.h), and the pseudo-random order of its shuffled schedules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace simt {

enum class ThreadOrder { kForward, kBackward, kShuffled };
enum class StreamOrder { kInOrder, kComputeLate, kCommLate, kShuffled };

struct Settings {
  Settings();  // from the environment
  ThreadOrder threads = ThreadOrder::kForward;
  StreamOrder streams = StreamOrder::kInOrder;
  uint64_t thread_seed = 0, stream_seed = 0;
  uint8_t poison = 0xff;
  bool protect = false;
  int devices = 8;
  int first_device = 0;  // of the machine's, from CUDA_VISIBLE_DEVICES
  bool ready = true;     // the Fabric Manager runs
  int capability = 80;
  size_t shared = 163 * 1024;  // of a block that asks for it
  size_t memory = size_t{40} << 30;
  size_t pinned = 0;  // page-locked memory of the host; 0: no limit
  std::string coverage, launches, graphs;
  bool late_copies = true;     // of copy_async: at the wait, not at once
  bool truncate_sums = false;  // in mma: as hardware does, not rounded to nearest
};

Settings& settings();

// splitmix64: random enough for shuffling, and the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t operator()();
  int below(int n) { return static_cast<int>((*this)() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

template <class T>
void shuffle(T* items, int count, Random& random) {
  for (int i = count - 1; i > 0; --i) {
    std::swap(items[i], items[random.below(i + 1)]);
  }
}

}  // namespace simt
