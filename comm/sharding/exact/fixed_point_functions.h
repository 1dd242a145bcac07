// The arithmetic of fixed_point.h, for both devices.
#pragma once

#include <cmath>
#include <cstdint>

#include "comm/sharding/exact/fixed_point.h"
#include "src/core/math.h"

namespace tandem::kernels {

// f32 times a power of two is exact in f64; only rint() rounds.
struct FixedPoint {
  double scale, limit;
  TANDEM_HOST_DEVICE bool fits(float x) const {  // false for NaN
    return std::fabs(static_cast<double>(x) * scale) < limit;
  }
  TANDEM_HOST_DEVICE int64_t operator()(float x) const {
    return fits(x) ? static_cast<int64_t>(std::rint(static_cast<double>(x) * scale)) : 0;
  }
};

// An int64 may need 63 bits, but f64 holds 53, and rounding twice can give another f32 than
// rounding once. So an integer of more than 53 bits is first rounded to odd: its low 10 bits are
// cleared, and bit 10 is set if any of them was set. The result has at most 53 bits, so f64 holds
// it and its product with a power of two. It is on the same side as x of every number and midpoint
// of f32, subnormal ones included, because those have at most 25 bits (Boldo and Melquiond 2008,
// "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd").
struct FloatingPoint {
  double scale;
  TANDEM_HOST_DEVICE float operator()(int64_t x) const {
    constexpr int64_t kExact = int64_t{1} << 53, kLow = 1023;
    const int64_t odd = (x & ~kLow) | ((x & kLow) != 0 ? kLow + 1 : 0);
    const int64_t held = x > -kExact && x < kExact ? x : odd;
    return static_cast<float>(static_cast<double>(held) * scale);
  }
};

struct SquareDigits {
  int64_t of[kSquareDigits + 1] = {};  // the last counts elements that do not fit

  TANDEM_HOST_DEVICE void add(FixedPoint fixed_point, float x) {
    const int64_t value = fixed_point(x);
    const int64_t square = value * value;  // below 1.25^2 * 2^62
    constexpr int64_t kMask = (int64_t{1} << kSquareDigitBits) - 1;
    of[0] += square & kMask;
    of[1] += square >> kSquareDigitBits & kMask;
    of[2] += square >> 2 * kSquareDigitBits;
    of[3] += fixed_point.fits(x) ? 0 : 1;
  }
};
inline constexpr double kSquareLimit = 0x1.4p31;

}  // namespace tandem::kernels
