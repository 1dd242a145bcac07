// GPU memory that is reused while work on it is still queued.
#include <cstdlib>

#include "src/device/copy.h"
#include "src/device/dispatch.h"
#include "src/kernels/elementwise.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

// The pool keeps its blocks, whatever the environment says.
Memory keeping_memory(const Stream& stream) {
  const char* before = std::getenv("TANDEM_MEMORY_CACHE");
  const std::string value = before ? before : "1";
  setenv("TANDEM_MEMORY_CACHE", "1", 1);
  Memory memory(stream);
  setenv("TANDEM_MEMORY_CACHE", value.c_str(), 1);
  return memory;
}

TEST(DeviceMemory, ZerosComeAfterTheWorkThatTheirMemoryStillHas) {
  for_each_device([](Device device) {
    if (device == Device::kCpu) {
      return;  // a CPU's work runs at once
    }
    constexpr int64_t kElements = 1000;
    constexpr int64_t kMany = int64_t{8} << 20;  // 32 MiB: half a millisecond between host and GPU
    Stream other = Stream::compute(device), stream = Stream::compute(device);
    Memory memory = keeping_memory(stream), pinned = Memory::pinned();
    const Tensor from = Tensor::zeros(pinned, {kMany}, DType::kF32, MemoryClass::kStaging);
    const Tensor to = Tensor::empty(memory, {kMany}, DType::kF32, MemoryClass::kData);
    copy(other, from, to);
    stream.wait(other.record());  // keeps the following work queued for a while
    Tensor used = Tensor::empty(memory, {kElements}, DType::kF32, MemoryClass::kActivations);
    const std::byte* place = used.raw();
    on_device(stream, {}, [&](auto tag) {
      if constexpr (!std::is_same_v<decltype(tag), Cpu>) {
        kernels::fill(tag, kElements, used.data<float>(), 1.0f);
      }
    });
    used = {};
    const Tensor zeros = Tensor::zeros(memory, {kElements}, DType::kF32, MemoryClass::kActivations);
    ASSERT_EQ(zeros.raw(), place) << "the pool handed out another block";
    // Copied on the stream that had the work, so that late work shows.
    EXPECT_EQ(values_of(copied(stream, zeros, test_memory())), std::vector<double>(kElements, 0.0));
  });
}

}  // namespace
}  // namespace tandem::testing
