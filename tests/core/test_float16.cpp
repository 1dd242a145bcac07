// bf16 and fp16 against the definition of round-to-nearest-even, over all 16-bit numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/core/float16.h"

namespace tandem {
namespace {

// The value of 16 bits with `exponent_bits` of exponent, from the definition of the format.
double value_of(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  const int scale = std::max(exponent, 1) - bias - fraction_bits;
  return sign * std::ldexp(fraction + (exponent > 0 ? 1 << fraction_bits : 0), scale);
}

template <class T>
void expect_format(int exponent_bits) {
  const uint16_t infinity = T(std::numeric_limits<float>::infinity()).bits;
  for (uint32_t i = 0; i < 0x10000; ++i) {
    T x;
    x.bits = static_cast<uint16_t>(i);
    const double value = value_of(x.bits, exponent_bits);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(float(x))) << i;
      ASSERT_TRUE(std::isnan(float(T(float(x))))) << i;
      continue;
    }
    ASSERT_EQ(float(x), static_cast<float>(value)) << i;
    ASSERT_EQ(T(static_cast<float>(value)).bits, x.bits) << i;
    if (x.bits >= infinity) {
      continue;  // negative numbers mirror the positive ones
    }
    // Between x and the next number, the middle is rounded to the even one, everything else to the
    // nearer one. The middle is exact in f32. The number after the largest is infinity.
    T next;
    next.bits = static_cast<uint16_t>(i + 1);
    const double above = std::isinf(float(next)) ? 2 * value - value_of(x.bits - 1, exponent_bits)
                                                 : value_of(next.bits, exponent_bits);
    const auto middle = static_cast<float>((value + above) / 2);
    for (const float sign : {1.0f, -1.0f}) {
      const uint16_t minus = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(T(sign * middle).bits, (i % 2 == 0 ? x.bits : next.bits) | minus) << i;
      ASSERT_EQ(T(sign * std::nextafter(middle, 0.0f)).bits, x.bits | minus) << i;
      ASSERT_EQ(T(sign * std::nextafter(middle, INFINITY)).bits, next.bits | minus) << i;
    }
  }
}

TEST(Float16, Bf16RoundsToNearestEven) { expect_format<Bf16>(8); }

TEST(Float16, Fp16RoundsToNearestEven) { expect_format<Fp16>(5); }

TEST(Float16, LargeNumbersBecomeInfinite) {
  EXPECT_EQ(float(Fp16(65519.0f)), 65504.0f);
  EXPECT_EQ(float(Fp16(65520.0f)), INFINITY);
  EXPECT_EQ(float(Fp16(-1e30f)), -INFINITY);
  EXPECT_EQ(float(Bf16(std::numeric_limits<float>::max())), INFINITY);
}

}  // namespace
}  // namespace tandem
