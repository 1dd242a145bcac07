#include "tests/simt/tensor_core.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/simt/block.h"
#include "tests/simt/launch.h"
#include "tests/simt/settings.h"
#include "tests/simt/shared.h"
#include "tests/simt/simt.h"

namespace simt {

namespace {

constexpr int kRows = 16, kColumns = 8, kDepth = 16;

struct MmaArguments {
  Widen widen;
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};

// x without the bits below `unit`, a power of two.
double cut(double x, double unit) { return std::trunc(x / unit) * unit; }

// The sum of the products a[i] b[i] and d, as tensor cores add it.
double truncated_sum(double d, const double* a, const double* b, int count) {
  double largest = std::fabs(d);
  for (int i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(a[i] * b[i]));
  }
  if (largest == 0 || !std::isfinite(largest)) {
    return std::inner_product(a, a + count, b, d);
  }
  const double unit = std::ldexp(1.0, std::ilogb(largest) - 24);
  double sum = cut(d, unit);
  for (int i = 0; i < count; ++i) {
    sum += cut(a[i] * b[i], unit);
  }
  return sum == 0 ? 0 : cut(sum, std::ldexp(1.0, std::max(std::ilogb(sum) - 23, -149)));
}

float sum_of_products(float d, const double* a, const double* b) {
  if (settings().truncate_sums) {
    return static_cast<float>(truncated_sum(truncated_sum(d, a, b, kDepth / 2), a + kDepth / 2,
                                            b + kDepth / 2, kDepth / 2));
  }
  return static_cast<float>(std::inner_product(a, a + kDepth, b, double{d}));
}

void multiply(const WarpArguments& lanes) {
  double a[kRows][kDepth], b[kColumns][kDepth];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& from = *static_cast<const MmaArguments*>(lanes[lane]);
    const int g = lane / 4, t = 2 * (lane % 4);
    for (int half = 0; half < 2; ++half) {
      const auto value = [&](uint32_t bits) {
        return from.widen(static_cast<uint16_t>(bits >> 16 * half));
      };
      for (int i = 0; i < 4; ++i) {
        a[g + i % 2 * 8][t + i / 2 * 8 + half] = value(from.a[i]);
      }
      for (int i = 0; i < 2; ++i) {
        b[g][t + i * 8 + half] = value(from.b[i]);
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    float* d = static_cast<const MmaArguments*>(lanes[lane])->d;
    for (int i = 0; i < 4; ++i) {
      d[i] = sum_of_products(d[i], a[lane / 4 + i / 2 * 8], b[2 * (lane % 4) + i % 2]);
    }
  }
  ++counters().products;
}

struct LoadArguments {
  uint32_t* r;
  const uint16_t* row;
  bool transposed;
};

void load(const WarpArguments& lanes) {
  const auto of = [&](int lane) -> const LoadArguments& {
    return *static_cast<const LoadArguments*>(lanes[lane]);
  };
  for (int matrix = 0; matrix < 4; ++matrix) {
    uintptr_t addresses[8];
    for (int row = 0; row < 8; ++row) {
      addresses[row] = reinterpret_cast<uintptr_t>(of(matrix * 8 + row).row);
    }
    counters().bank_conflicts += bank_conflicts(addresses, 8, 16);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = 2 * (lane % 4);
      uint32_t bits = 0;
      for (int half = 0; half < 2; ++half) {
        const uint16_t element = of(lane).transposed ? of(matrix * 8 + t + half).row[g]
                                                     : of(matrix * 8 + g).row[t + half];
        bits |= uint32_t{element} << 16 * half;
      }
      of(lane).r[matrix] = bits;
    }
  }
}

}  // namespace

void mma(Widen widen, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
         Place place) {
  MmaArguments arguments{widen, d, a, {b0, b1}};
  warp_together("mma", &arguments, multiply, place);
}

void load_matrices(uint32_t (&r)[4], const void* row, bool transposed, Place place) {
  if (!is_shared(row, 16)) {
    fail("ldmatrix outside shared memory");
  }
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    fail("ldmatrix of an unaligned row");
  }
  LoadArguments arguments{r, static_cast<const uint16_t*>(row), transposed};
  warp_together("ldmatrix", &arguments, load, place);
}

}  // namespace simt
