// The matrix instructions of a warp: mma.sync.m16n8k16 and ldmatrix.x4. Layouts of registers are
// described in src/device/ptx.cuh.
#pragma once

#include <cstdint>

#include "tests/simt/device_functions.h"

namespace simt {

// The value of 16 bits, as a function for each type.
using Widen = double (*)(uint16_t bits);
template <class T>
double widen(uint16_t bits) {
  T value;
  value.bits = bits;
  return float(value);
}

// D += A B. Rounded to nearest: the sum of all terms is rounded to f32 once. Truncated: two sums of
// 8 products and D, whose terms are cut off 25 bits below the largest, and the sum to f32. So each
// is off by at most 9 * 2^-24 of its largest term and 2^-23 of itself; hardware keeps at least as
// many bits.
void mma(Widen widen, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Place place);

void load_matrices(uint32_t (&r)[4], const void* row, bool transposed, Place place);

}  // namespace simt
