// How tensor memory uses the GPU when its pool keeps no freed blocks (TANDEM_MEMORY_CACHE=0), and
// how copies come to it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "src/device/copy.h"
#include "src/kernels/elementwise.h"
#include "tests/simt/settings.h"
#include "tests/simt/simt.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

constexpr int64_t kElements = 1 << 17, kBytes = kElements * 4;

// Ten tensors, one after another, on a GPU with room for two.
TEST(UncachedMemory, ServesTheStreamAgainWithoutAWait) {
  setenv("TANDEM_MEMORY_CACHE", "0", 1);
  Stream stream = Stream::compute(Device::kCuda);
  size_t available = 0, total = 0;
  cudaMemGetInfo(&available, &total);
  simt::settings().memory = total - available + 2 * kBytes;
  Memory memory(stream);
  const int64_t waits = simt::counters().host_syncs;
  for (int i = 0; i < 10; ++i) {
    const Tensor tensor =
        Tensor::empty(memory, {kElements}, DType::kF32, MemoryClass::kActivations);
    kernels::fill(Cuda{stream.handle()}, 1, tensor.data<float>(), 1.0f);
  }
  EXPECT_EQ(simt::counters().host_syncs, waits);
  simt::settings().memory = total;
}

// Another stream may not use a block before the block's own stream has reached its allocation.
TEST(UncachedMemory, BelongsToItsStream) {
  setenv("TANDEM_MEMORY_CACHE", "0", 1);
  const auto fill_on_another_stream = [](bool with_event) {
    return simt::failure_of([&] {
      Stream stream = Stream::compute(Device::kCuda), other = Stream::compute(Device::kCuda);
      simt::set_stream_schedule("compute-late");  // the younger stream first
      Memory memory(stream);
      const Tensor tensor = Tensor::empty(memory, {8}, DType::kF32, MemoryClass::kActivations);
      if (with_event) {
        other.wait(stream.record());
      }
      kernels::fill(Cuda{other.handle()}, 8, tensor.data<float>(), 1.0f);
      other.synchronize();
    });
  };
  EXPECT_EQ(fill_on_another_stream(true), "");
  EXPECT_NE(fill_on_another_stream(false).find("use before allocation"), std::string::npos);
  simt::set_stream_schedule("in-order");
}

// Whoever does not wait for a copy reads neither what was there nor what comes, which are equal
// here.
TEST(CopyFromTheHost, IsPoisonUntilItEnds) {
  const uint8_t poison = std::exchange(simt::settings().poison, uint8_t{0xff});  // NaN
  simt::set_stream_schedule("compute-late");  // the copy begins first
  Stream stream = Stream::compute(Device::kCuda), in = Stream::copying(stream);
  Memory memory(stream), host = Memory::pinned();
  const auto empty = [](Memory& from) {
    return Tensor::empty(from, {8}, DType::kF32, MemoryClass::kStaging);
  };
  const Tensor resting = empty(host), place = empty(memory), seen = empty(memory);
  std::ranges::fill(resting.as<float>(), 1.0f);
  stream.synchronize();
  const auto read = [&](bool waits) {
    copy(in, resting, place);
    if (waits) {
      stream.wait(in.record());
    }
    copy(stream, place, seen);
    stream.synchronize();
    in.synchronize();
    return values_of(seen)[0];
  };
  EXPECT_EQ(read(true), 1);
  EXPECT_TRUE(std::isnan(read(false)));
  EXPECT_EQ(read(true), 1);
  simt::set_stream_schedule("in-order");
  simt::settings().poison = poison;
}

}  // namespace
}  // namespace tandem::testing
