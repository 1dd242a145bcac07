// Messages of eight-bit numbers against their definition (comm/sharding/eight_bits/blocks.h).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "comm/sharding/eight_bits/blocks.h"
#include "src/device/dispatch.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

using Numbers = std::vector<float>;

constexpr int64_t kBlocks = 9, kCount = kBlocks * kBlockElements;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Tensor of(const Numbers& numbers, Device device, DType dtype = DType::kF32) {
  const Tensor host =
      Tensor::empty(test_memory(), {std::ssize(numbers)}, DType::kF32, MemoryClass::kData);
  std::ranges::copy(numbers, host.data<float>());
  return to_device(dtype == DType::kF32 ? host : rounded_to(host, dtype), device);
}

// A message of `from`, in host memory; `numbers` null: to nearest.
Tensor written(const Tensor& from, const StepNumbers* numbers = nullptr, uint32_t rank = 0,
               uint64_t first = 0, uint32_t turn = 0) {
  const Device device = from.device();
  Memory& memory = test_memory(device);
  const Tensor noise = Tensor::empty(memory, {sizeof(BlockNoise)}, DType::kU8, MemoryClass::kData);
  const Tensor message =
      Tensor::empty(memory, {block_words(from.elements())}, DType::kI32, MemoryClass::kData);
  auto* to = reinterpret_cast<BlockNoise*>(noise.raw());
  const DeviceNumbers there(device, numbers ? *numbers : StepNumbers{});
  on_device(test_stream(device), {}, from.dtype(), [&]<class T>(auto tag) {
    kernels::make_noise(tag, there.get(), rank, to);
    kernels::write_blocks(tag, from.elements(), from.data<T>(),
                          {.noise = numbers ? to : nullptr, .first = first, .turn = turn},
                          message.data<int32_t>());
  });
  return to_host(message);
}

// The sum of `parts` messages that follow each other.
Tensor read(const Tensor& messages, int parts, Device device, DType dtype = DType::kF32) {
  const int64_t n = messages.elements() / parts / kBlockWords * kBlockElements;
  const Tensor there = to_device(messages, device);
  const Tensor sum = Tensor::empty(test_memory(device), {n}, dtype, MemoryClass::kData);
  on_device(test_stream(device), {}, dtype, [&]<class T>(auto tag) {
    kernels::sum_blocks(tag, parts, n, there.data<int32_t>(), sum.data<T>());
  });
  return to_host(sum);
}

float scale_of(const Tensor& message, int64_t block) {
  return std::bit_cast<float>(message.data<int32_t>()[(block + 1) * kBlockWords - 1]);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() &&
         std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

// Blocks of all magnitudes, down to numbers below the smallest normal one.
Numbers many() {
  constexpr float kLargest[kBlocks] = {1.0f,   3e38f,      1e-44f, 2e-38f,        0.0f,
                                       1e-30f, 12345.678f, 127.0f, 0x1.fffffep-1f};
  Numbers numbers;
  const Tensor random = random_tensor({kCount}, DType::kF32, 3);
  for (int64_t i = 0; i < kCount; ++i) {
    const float share = i % kBlockElements == 77 ? -1.0f : std::tanh(random.data<float>()[i]);
    numbers.push_back(kLargest[i / kBlockElements] * share);
  }
  return numbers;
}

TEST(EightBits, TakeTheBytesOfTheFormula) {
  EXPECT_EQ(4 * block_words(kBlockElements), 132);
  EXPECT_EQ(4.0 * block_words(1 << 20) / (4 << 20), 0.2578125);
}

TEST(EightBits, ErrorsAreBelowTheirBounds) {
  const Numbers numbers = many();
  const StepNumbers step{.seed = 7, .step = 5, .micro_step = 1};
  for_each_device([&](Device device) {
    for (const StepNumbers* random : {static_cast<const StepNumbers*>(nullptr), &step}) {
      const Tensor message = written(of(numbers, device), random);
      const Tensor back = read(message, 1, device);
      for (int64_t i = 0; i < kCount; ++i) {
        const int64_t block = i / kBlockElements;
        const float scale = scale_of(message, block);
        const double error = std::fabs(double{back.data<float>()[i]} - numbers[i]);
        EXPECT_LE(error, random ? scale : scale / 2) << "element " << i;
        // f32's division, and the scale's own rounding to 16 bits.
        const double wanted = std::fabs(numbers[block * kBlockElements + 77]) / 127.0;
        EXPECT_LE(scale, std::max(wanted * (1 + 0x1p-24) * (1 + 0x1p-15), 0x1p-126));
        EXPECT_GE(scale, std::max(wanted * (1 - 0x1p-24), 0x1p-126));
        EXPECT_EQ(std::bit_cast<uint32_t>(scale) & 0xffu, 0u);
      }
    }
  });
}

TEST(EightBits, NumbersOfTheGridAreKept) {
  Numbers numbers;
  for (int64_t i = 0; i < kCount; ++i) {
    numbers.push_back(static_cast<float>(i % kBlockElements == 0 ? 127 : i % 255 - 127) * 0.5f);
  }
  const StepNumbers step{.seed = 7};
  for_each_device([&](Device device) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      const Tensor from = of(numbers, device, dtype);
      for (const StepNumbers* random : {static_cast<const StepNumbers*>(nullptr), &step}) {
        EXPECT_TRUE(same_bits(read(written(from, random), 1, device, dtype), to_host(from)))
            << name_of(dtype);
      }
    }
  });
}

TEST(EightBits, ABlockThatIsNotFiniteSaysSo) {
  for_each_device([&](Device device) {
    for (const float odd : {kNaN, kInfinity, -kInfinity}) {
      Numbers numbers(3 * kBlockElements, 127.0f);
      numbers[kBlockElements + 40] = odd;
      const Tensor back = read(written(of(numbers, device)), 1, device);
      for (int64_t i = 0; i < back.elements(); ++i) {
        const float value = back.data<float>()[i];
        EXPECT_TRUE(i / kBlockElements == 1 ? std::isnan(value) : value == 127.0f) << i;
      }
    }
  });
}

// The mean of a number that lies a fraction p of a scale s above its lower neighbour is the number,
// and one rounding has the variance p (1 - p) s^2.
TEST(EightBits, RandomRoundingHasNoBias) {
  constexpr int kRoundings = 10000;
  const Tensor random = random_tensor({kBlockElements}, DType::kF32, 4);
  const Numbers numbers(random.data<float>(), random.data<float>() + kBlockElements);
  std::vector<double> sums(kBlockElements);
  float scale = 0;
  for (int step = 0; step < kRoundings; ++step) {
    const StepNumbers now{.seed = 1, .step = static_cast<uint64_t>(step)};
    const Tensor message = written(of(numbers, Device::kCpu), &now);
    scale = scale_of(message, 0);
    const Tensor back = read(message, 1, Device::kCpu);
    for (int64_t i = 0; i < kBlockElements; ++i) {
      sums[i] += back.data<float>()[i];
    }
  }
  for (int64_t i = 0; i < kBlockElements; ++i) {
    const double quotient = numbers[i] / scale, p = quotient - std::floor(quotient);
    const double standard_error = scale * std::sqrt(p * (1 - p) / kRoundings);
    // 2^-24: the random numbers' steps.
    EXPECT_NEAR(sums[i] / kRoundings, numbers[i], 4 * standard_error + scale * 0x1p-24) << i;
  }
}

TEST(EightBits, RandomNumbersAreThoseOfTheirPlace) {
  const Numbers numbers = many();
  const StepNumbers step{.seed = 7, .step = 5, .micro_step = 1};
  StepNumbers seed = step, later = step, micro = step;
  ++seed.seed, ++later.step, ++micro.micro_step;
  for_each_device([&](Device device) {
    const Tensor from = of(numbers, device), message = written(from, &step, 2, 256, 0);
    EXPECT_TRUE(same_bits(message, written(from, &step, 2, 256, 0)));
    for (const Tensor& other :
         {written(from, &seed, 2, 256, 0), written(from, &later, 2, 256, 0),
          written(from, &micro, 2, 256, 0), written(from, &step, 1, 256, 0),
          written(from, &step, 2, 0, 0), written(from, &step, 2, 256, 1), written(from)}) {
      EXPECT_FALSE(same_bits(message, other));
    }
    // A message's second block has the numbers of a message that begins there.
    const Tensor rest = written(from.slice(kBlockElements, kCount - kBlockElements), &step, 2, 384);
    EXPECT_TRUE(same_bits(rest, message.slice(kBlockWords, message.elements() - kBlockWords)));
  });
}

TEST(EightBits, SumsGoInTheOrderOfMessages) {
  constexpr int kParts = 3;
  const Tensor random = random_tensor({kParts * kCount}, DType::kF32, 6);
  const Numbers numbers(random.data<float>(), random.data<float>() + kParts * kCount);
  for_each_device([&](Device device) {
    const Tensor messages = written(of(numbers, device));
    const Tensor each = read(messages, 1, device), sum = read(messages, kParts, device);
    for (int64_t i = 0; i < kCount; ++i) {
      float wanted = each.data<float>()[i];
      for (int part = 1; part < kParts; ++part) {
        wanted += each.data<float>()[part * kCount + i];
      }
      EXPECT_EQ(sum.data<float>()[i], wanted) << i;
    }
  });
}

TEST(EightBits, AllDevicesGiveTheSameBits) {
  const Numbers numbers = many();
  const StepNumbers step{.seed = 7, .step = 1ull << 31, .micro_step = 3};
  const Tensor here = written(of(numbers, Device::kCpu), &step, 3, 128, 1);
  for_each_device([&](Device device) {
    EXPECT_TRUE(same_bits(written(of(numbers, device), &step, 3, 128, 1), here));
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      EXPECT_TRUE(
          same_bits(read(here, kBlocks, device, dtype), read(here, kBlocks, Device::kCpu, dtype)));
    }
  });
}

}  // namespace
}  // namespace tandem::testing
