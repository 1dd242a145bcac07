// Replaces src/device/ptx.cuh on the emulated GPU: each function does what its instruction does.
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "src/core/float16.h"
#include "src/device/global.h"
#include "src/device/shared.h"
#include "tests/simt/simt.h"
#include "tests/simt/tensor_core.h"

namespace tandem::ptx {

inline int64_t global_timer() { return simt::time_ns(); }

// An exact result y of an approximate instruction, off by up to `ulps` units in the last place. By
// how many depends on the argument x. Subnormal results are zero.
inline float approximate(float y, float x, int ulps) {
  if (std::fabs(y) < FLT_MIN) {
    return std::copysign(0.0f, y);
  }
  if (!std::isfinite(y)) {
    return y;
  }
  const uint32_t hash = std::bit_cast<uint32_t>(x) * 0x9e3779b1u >> 16;
  const int error = static_cast<int>(hash % static_cast<uint32_t>(2 * ulps + 1)) - ulps;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) + static_cast<uint32_t>(error));
}

// 2^x with an error of at most 2 ulp; subnormal arguments and results are zero. 2^-inf = 0, 2^0
// = 1.
inline float exp2(float x) {
  return std::fabs(x) < FLT_MIN ? 1.0f : approximate(std::exp2(x), x, 2);
}

// 1 / x with an error of at most 1 ulp; subnormal arguments and results are zero.
inline float reciprocal(float x) {
  const float argument = std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x;
  return approximate(1.0f / argument, x, 1);
}

// Two numbers rounded to nearest even, `low` in the lower 16 bits.
inline uint32_t bf16_pair(float low, float high) {
  return uint32_t{float16::bf16_from_float(high)} << 16 | float16::bf16_from_float(low);
}
inline uint32_t fp16_pair(float low, float high) {
  return uint32_t{float16::fp16_from_float(high)} << 16 | float16::fp16_from_float(low);
}

// --- matrix products of a warp; layouts as in src/device/ptx.cuh ---

template <class T>
void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t b0, const uint32_t b1,
         simt::Place place = simt::Place::current()) {
  static_assert(kIs16Bit<T>);
  simt::mma(std::is_same_v<T, Bf16> ? simt::widen<Bf16> : simt::widen<Fp16>, d, a, b0, b1, place);
}

template <class T>
void ldmatrix(uint32_t (&r)[4], Shared<T> row, simt::Place place = simt::Place::current()) {
  simt::load_matrices(r, row.data(), false, place);
}

template <class T>
void ldmatrix_transposed(uint32_t (&r)[4], Shared<T> row,
                         simt::Place place = simt::Place::current()) {
  simt::load_matrices(r, row.data(), true, place);
}

// --- asynchronous copies from global to shared memory ---

template <int kBytes, class T>
void copy_async(Shared<T> to, Global<const T> from, int64_t i, bool valid,
                simt::Place place = simt::Place::current()) {
  static_assert(kBytes == 4 || kBytes == 16);
  simt::copy_async(to.data(), from.template address<kBytes>(valid ? i : 0, valid), kBytes, valid,
                   place);
}

inline void copies_commit() { simt::copies_commit(); }

template <int kPending>
void copies_wait() {
  simt::copies_wait(kPending);
}

}  // namespace tandem::ptx
