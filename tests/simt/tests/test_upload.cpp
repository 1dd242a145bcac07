// What an input asks of the device.
#include <gtest/gtest.h>

#include "src/step/upload.h"
#include "tests/simt/simt.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

TEST(Input, OfImagesTakesFewCallsAndAByteAPixel) {
  constexpr int64_t kSamples = 16, kSide = 32, kPixels = 3 * kSide * kSide, kBatches = 3;
  const DatasetInfo info{.kind = DatasetKind::kImages,
                         .channels = 3,
                         .height = kSide,
                         .width = kSide,
                         .classes = std::vector<std::string>(10),
                         .mean = {0, 0, 0},
                         .std = {1, 1, 1}};
  Memory staging = Memory::pinned();
  Uploader upload(test_stream(Device::kCuda), test_memory(Device::kCuda), staging, info,
                  DType::kF32);
  const MicroBatch batch{.samples = kSamples,
                         .targets = std::vector<int32_t>(kSamples),
                         .pixels = std::vector<uint8_t>(kSamples * kPixels),
                         .placements = std::vector<ImagePlacement>(kSamples)};
  const std::vector<MicroBatch> batches(kBatches, batch);
  for (int step = 0; step < 3; ++step) {
    test_stream(Device::kCuda).synchronize();
    simt::counters() = {};
    upload.send(batches);
    for (int64_t i = 0; i < kBatches; ++i) {
      upload.fetch(i);
    }
    const int64_t bytes_of_image = simt::counters().bytes_to_device / (kBatches * kSamples);
    EXPECT_EQ(bytes_of_image, kPixels + 4 * 4);  // its placement and its class
    if (step > 0) {
      EXPECT_EQ(simt::counters().enqueued, 6 + kBatches);
      EXPECT_EQ(simt::counters().launches, kBatches);
      EXPECT_EQ(simt::counters().pageable_copies, 0);
      EXPECT_EQ(simt::counters().host_syncs, 0);
      EXPECT_EQ(simt::counters().device_allocations, 0);
    }
  }
}

}  // namespace
}  // namespace tandem::testing
