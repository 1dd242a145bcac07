#include <gmock/gmock.h>

#include "layers/image_input/image_input.h"
#include "src/device/copy.h"
#include "src/step/upload.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

constexpr int64_t kSamples = 3, kLength = 5, kChannels = 3, kHeight = 4, kWidth = 6;

DatasetInfo text_info() { return {.kind = DatasetKind::kText, .vocab_size = 50}; }
DatasetInfo image_info() {
  return {.kind = DatasetKind::kImages,
          .channels = kChannels,
          .height = kHeight,
          .width = kWidth,
          .classes = std::vector<std::string>(7),
          .mean = {0.5, 0.25, 0.125},
          .std = {0.5, 1.0, 0.3}};
}

// Micro-batch `number` of a text or of images; all differ.
MicroBatch micro_batch(const DatasetInfo& info, int32_t number, int64_t samples = kSamples) {
  const bool text = info.kind == DatasetKind::kText;
  const int32_t limit = text ? 50 : 7;
  MicroBatch batch{.samples = samples};
  for (int32_t i = 0; i < samples * (text ? kLength : 1); ++i) {
    batch.targets.push_back(i % 4 == 3 ? kIgnoreTarget : (i * 3 + number) % limit);
  }
  for (int32_t i = 0; text && i < samples * kLength; ++i) {
    batch.tokens.push_back((i * 7 + number) % limit);
    batch.positions.push_back((i + number) % kLength);
  }
  for (int64_t i = 0; !text && i < samples * kChannels * kHeight * kWidth; ++i) {
    batch.pixels.push_back(static_cast<uint8_t>(i * 5 + number));
  }
  for (int32_t i = 0; !text && i < samples; ++i) {
    batch.placements.push_back({.shift_y = i - 1, .shift_x = number % 3, .flip = i % 2});
  }
  return batch;
}

template <class T>
Tensor host_tensor(const std::vector<T>& values, const Shape& shape, DType dtype) {
  return Tensor::of(std::as_bytes(std::span(values)), test_memory(), shape, dtype,
                    MemoryClass::kData);
}

// What a micro-batch must be on the device.
Tensor input_of(const DatasetInfo& info, const MicroBatch& batch, DType dtype) {
  if (info.kind == DatasetKind::kText) {
    return host_tensor(batch.tokens, {batch.samples, kLength}, DType::kI32);
  }
  const Tensor images = unwritten({batch.samples, kHeight, kWidth, kChannels}, dtype);
  image_input(test_stream(),
              host_tensor(batch.pixels, {batch.samples, kChannels, kHeight, kWidth}, DType::kU8),
              host_tensor(batch.placements, {batch.samples, 3}, DType::kI32),
              host_tensor(values_of_levels(info.mean, info.std), {kChannels, 256}, DType::kF32),
              images);
  return images;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::equal(a.raw(), a.raw() + a.bytes(), b.raw());
}

class Upload : public ::testing::TestWithParam<DatasetInfo> {
 protected:
  // Enqueues a copy of what a batch is now, as a step would read it.
  void read(Stream& stream, Memory& memory, const DeviceBatch& batch) {
    const bool has_positions = GetParam().kind == DatasetKind::kText;
    for (const Tensor& from :
         {batch.input, batch.targets, has_positions ? batch.positions : batch.targets}) {
      seen_.push_back(Tensor::empty(memory, from.shape(), from.dtype(), MemoryClass::kData));
      copy(stream, from, seen_.back());
    }
  }
  void expect_read(size_t number, const MicroBatch& batch, DType dtype) {
    EXPECT_TRUE(same(to_host(seen_[3 * number]), input_of(GetParam(), batch, dtype))) << number;
    const Tensor targets = to_host(seen_[3 * number + 1]), last = to_host(seen_[3 * number + 2]);
    EXPECT_TRUE(std::ranges::equal(targets.as<int32_t>(), batch.targets)) << number;
    const bool has_positions = !batch.positions.empty();
    EXPECT_TRUE(
        std::ranges::equal(last.as<int32_t>(), has_positions ? batch.positions : batch.targets))
        << number;
  }
  std::vector<Tensor> seen_;
};

// Three steps of three micro-batches, each with a validation of another size, are enqueued without
// waiting. A step must not find what was sent for the next one.
TEST_P(Upload, EachStepReadsItsOwnMicroBatches) {
  for_each_device([&](Device device) {
    seen_.clear();
    const DType dtype = device == Device::kCpu ? DType::kF32 : DType::kBf16;
    Stream& stream = test_stream(device);
    Memory& memory = test_memory(device);
    Memory staging = device == Device::kCpu ? memory : Memory::pinned();
    Uploader upload(stream, memory, staging, GetParam(), dtype);
    std::vector<MicroBatch> all;
    for (int32_t step = 0; step < 3; ++step) {
      const std::vector<MicroBatch> batches = {micro_batch(GetParam(), 3 * step),
                                               micro_batch(GetParam(), 3 * step + 1),
                                               micro_batch(GetParam(), 3 * step + 2)};
      upload.send(batches);
      for (int64_t i = 0; i < 3; ++i) {
        read(stream, memory, upload.fetch(i));
      }
      const MicroBatch other = micro_batch(GetParam(), 20 + step, 2);
      upload.send({&other, 1});
      read(stream, memory, upload.fetch(0));
      all.insert(all.end(), batches.begin(), batches.end());
      all.push_back(other);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      expect_read(i, all[i], dtype);
    }
  });
}

TEST_P(Upload, MicroBatchesOfASizeStayWhereTheyAre) {
  for_each_device([&](Device device) {
    Memory& memory = test_memory(device);
    Memory staging = device == Device::kCpu ? memory : Memory::pinned();
    Uploader upload(test_stream(device), memory, staging, GetParam(), DType::kF32);
    const std::vector<MicroBatch> batches = {micro_batch(GetParam(), 1),
                                             micro_batch(GetParam(), 2)};
    const MicroBatch other = micro_batch(GetParam(), 1, 2);
    const Tensor memory_of_both = upload.send(batches);
    const DeviceBatch first = upload.fetch(0), second = upload.fetch(1);
    EXPECT_NE(first.targets.raw(), second.targets.raw());
    EXPECT_NE(upload.send({&other, 1}).raw(), memory_of_both.raw());
    EXPECT_NE(upload.fetch(0).input.raw(), first.input.raw());
    const Tensor again = upload.send(batches);
    EXPECT_TRUE(device == Device::kCpu || again.raw() == memory_of_both.raw());
    EXPECT_TRUE(device == Device::kCpu || upload.fetch(1).targets.raw() == second.targets.raw());
    EXPECT_TRUE(
        same(to_host(upload.fetch(1).input), input_of(GetParam(), batches[1], DType::kF32)));
  });
}

// The stream computes for a second after it has fetched a micro-batch; the next one comes
// meanwhile.
TEST_P(Upload, CopiesRunBesideTheStep) {
  Stream stream = Stream::dry(Device::kCuda, {.bytes_per_s = 1e6});
  Stream host = Stream::dry(Device::kCpu, {});
  Memory memory(stream), staging(host);
  Uploader upload(stream, memory, staging, GetParam(), DType::kF32);
  const bool is_text = GetParam().kind == DatasetKind::kText;
  const BatchSizes batch{kSamples, kSamples * (is_text ? kLength : 1), is_text};
  for (int step = 0; step < 3; ++step) {
    const double waited = stream.clock().waited_s;
    upload.send({&batch, 1});
    upload.fetch(0);
    EXPECT_EQ(stream.clock().waited_s > waited, step == 0) << step;
    stream.clock().advance(1);
  }
}

INSTANTIATE_TEST_SUITE_P(, Upload, ::testing::Values(text_info(), image_info()),
                         [](const auto& of) { return std::string(name_of(of.param.kind)); });

TEST(UploadToAGpu, RefusesWhatItsKernelsWouldNotNotice) {
  for_each_device([](Device device) {
    if (device == Device::kCpu) {
      return;
    }
    Memory staging = Memory::pinned();
    const DatasetInfo text = text_info(), images = image_info();
    Uploader of_text(test_stream(device), test_memory(device), staging, text, DType::kF32);
    Uploader of_images(test_stream(device), test_memory(device), staging, images, DType::kF32);
    MicroBatch batch = micro_batch(text, 0);
    batch.tokens[4] = 50;
    EXPECT_EQ(message_of([&] {
                of_text.send({&batch, 1});
              }),
              "token 50 is outside [0, 50); make the dataset again");
    batch = micro_batch(images, 0);
    batch.targets[1] = -2;
    EXPECT_EQ(message_of([&] {
                of_images.send({&batch, 1});
              }),
              "target -2 is outside [0, 7); make the dataset again");
  });
}

}  // namespace
}  // namespace tandem::testing
