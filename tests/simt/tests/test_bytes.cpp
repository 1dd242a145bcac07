// The bytes that memory-bound kernels move, in sectors of 32 bytes, against the least possible.
#include <gtest/gtest.h>

#include "layers/activation/activation.h"
#include "layers/cross_entropy/cross_entropy.h"
#include "optim/adamw.h"
#include "src/kernels/activation_functions.h"
#include "src/kernels/elementwise.h"
#include "tests/optim/optimizer_check.h"
#include "tests/simt/simt.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

constexpr int64_t kRows = 4096, kWidth = 768, kElements = kRows * kWidth;
constexpr double kAllowed = 1.05;  // of the least possible

double bytes_moved(const std::function<void(Cuda)>& work) {
  simt::set_thread_schedule("forward");  // for which sectors are counted exactly
  Stream& stream = test_stream(Device::kCuda);
  stream.synchronize();
  simt::counters() = {};
  work(Cuda{stream.handle()});
  stream.synchronize();
  return 32.0 *
         static_cast<double>(simt::counters().sectors_read + simt::counters().sectors_written);
}

Tensor on_gpu(const Shape& shape, DType dtype) {
  return to_device(rounded_to(random_tensor(shape, DType::kF32, 3), dtype), Device::kCuda);
}

TEST(Bytes, Activations) {
  const Tensor x = on_gpu({kElements}, DType::kBf16), y = on_gpu({kElements}, DType::kBf16);
  EXPECT_LE(bytes_moved([&](Cuda device) {
              kernels::activation_forward<kernels::Gelu>(device, kElements, x.data<Bf16>(),
                                                         y.data<Bf16>());
            }),
            kAllowed * 2 * 2 * kElements);
  EXPECT_LE(bytes_moved([&](Cuda device) {
              kernels::activation_backward<kernels::Gelu>(device, kElements, y.data<Bf16>(),
                                                          x.data<Bf16>(), y.data<Bf16>(), 0);
            }),
            kAllowed * 3 * 2 * kElements);
}

// Rows of GPT-2's classes, stored in a multiple of 128: one read, and one write with the padding.
TEST(Bytes, CrossEntropy) {
  constexpr int64_t kTokens = 16, kClasses = 50257, kStored = 50304;
  const Tensor logits = on_gpu({kTokens, kStored}, DType::kBf16);
  const Tensor targets =
      to_device(int_tensor({kTokens}, std::vector<int32_t>(kTokens, 7)), Device::kCuda);
  const Tensor losses = unwritten({kTokens}, DType::kF32, Device::kCuda);
  const Tensor scale = on_gpu({1}, DType::kF32);
  EXPECT_LE(bytes_moved([&](Cuda device) {
              kernels::cross_entropy_gradient<Bf16>(
                  device, logits.data<Bf16>(), targets.data<int32_t>(), losses.data<float>(),
                  {scale.data<float>(), 0}, {kTokens, kClasses, kStored});
            }),
            kAllowed * 2 * kTokens * (kClasses + kStored));
}

// Two shards with two moments, in f32: the gradient is read, value and moments are read and
// written. One launch prepares, one updates.
TEST(Bytes, AdamW) {
  std::vector<Shard> shards;
  for (const bool decay : {true, false}) {
    shards.push_back({.value = on_gpu({kElements}, DType::kF32),
                      .grad = on_gpu({kElements}, DType::kF32),
                      .decay = decay,
                      .working = on_gpu({kElements}, DType::kBf16)});
  }
  const auto optimizer = make_adamw({}, shards, test_memory(Device::kCuda));
  DeviceState state(Device::kCuda);
  state.decide(1);
  const DeviceNumbers numbers(Device::kCuda, {.lr = 1e-3});
  const auto step = [&](Cuda) {
    optimizer->step(test_stream(Device::kCuda), shards,
                    {.numbers = numbers.get(), .state = state.get()});
  };
  bytes_moved(step);
  EXPECT_LE(bytes_moved(step), kAllowed * 30 * 2 * kElements);
  EXPECT_EQ(simt::counters().launches, 2);
  EXPECT_EQ(simt::counters().pageable_copies, 0);  // the list of shards stays
}

}  // namespace
}  // namespace tandem::testing
