#include "comm/sharding/exact/fixed_point.h"

#include <algorithm>

#include "comm/sharding/exact/fixed_point_functions.h"
#include "src/kernels/map.h"

namespace tandem::kernels {

void quantise(Cpu, int64_t n, const float* from, double scale, double limit, int64_t* to, bool add,
              int32_t* largest) {
  const FixedPoint fixed_point{scale, limit};
  int32_t most = *largest;
#pragma omp parallel for simd schedule(static) reduction(max : most) if (n >= kParallelElements)
  for (int64_t i = 0; i < n; ++i) {
    most = std::max(most, math::magnitude_bits(from[i]));
    to[i] = fixed_point(from[i]) + (add ? to[i] : 0);
  }
  *largest = most;
}

void dequantise(Cpu, int64_t n, const int64_t* from, double scale, float* to) {
  map(Cpu{}, n, [=, value = FloatingPoint{scale}](int64_t i) { to[i] = value(from[i]); });
}

void add_squares(Cpu, int64_t n, const float* x, double scale, int64_t* digits) {
  const FixedPoint fixed_point{scale, kSquareLimit};
#pragma omp parallel if (n >= kParallelElements)
  {
    SquareDigits sums;
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < n; ++i) {
      sums.add(fixed_point, x[i]);
    }
    for (int digit = 0; digit <= kSquareDigits; ++digit) {
#pragma omp atomic
      digits[digit] += sums.of[digit];
    }
  }
}

}  // namespace tandem::kernels
