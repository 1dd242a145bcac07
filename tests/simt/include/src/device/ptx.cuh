// Replaces src/device/ptx.cuh on the emulated GPU: each function does what its instruction does.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "src/core/float16.h"
#include "src/device/global.h"
#include "src/device/shared.h"
#include "tests/simt/tensor_core.h"

namespace tandem::ptx {

// 2^x; subnormal arguments and results are zero. 2^-inf = 0.
inline float exp2(float x) {
  const float y = std::exp2(std::fabs(x) < FLT_MIN ? 0.0f : x);
  return y < FLT_MIN ? 0.0f : y;
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
