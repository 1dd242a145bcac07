// GPU instructions that C++ cannot express. The emulated GPU of tests/simt/ replaces this header by
// one with the same semantics. Names and layouts are those of NVIDIA's PTX ISA.
#pragma once

#include <cstdint>
#include <type_traits>

#include "src/core/float16.h"
#include "src/device/global.h"
#include "src/device/shared.h"

namespace tandem::ptx {

// 2^x with an error of at most 2 ulp; subnormal results are zero. 2^-inf = 0.
__device__ inline float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x with an error of at most 1 ulp; subnormal arguments and results are zero.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two numbers rounded to nearest even, `low` in the lower 16 bits. NaN gives 0x7fff.
__device__ inline uint32_t bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline uint32_t fp16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Nanoseconds by the GPU's clock.
__device__ inline int64_t global_timer() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// --- matrix products of a warp (sm_80) ---
//
// All 32 lanes must call these together. Lane l holds, with g = l / 4 and t = l % 4, two 16-bit
// elements in each register of A and B, the one with the lower index in the lower half:
//   A [16, 16]: a[0] (g, 2t), a[1] (g + 8, 2t), a[2] (g, 2t + 8), a[3] (g + 8, 2t + 8)
//   B [16, 8]:  b[0] (2t, g), b[1] (2t + 8, g), where the pair is in neighbouring rows
//   D [16, 8]:  d[0] (g, 2t), d[1] (g, 2t + 1), d[2] (g + 8, 2t), d[3] (g + 8, 2t + 1)

// D += A B, with A and B of type T (bf16 or fp16). Products are exact. For each half of the 16
// terms, the hardware aligns products and sum to the largest of them and cuts off lower bits, so
// that sum is off by at most 9 * 2^-24 of its largest term and 2^-23 of itself (Fasi et al. 2021,
// "Numerical behavior of NVIDIA tensor cores").
template <class T>
__device__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t b0, const uint32_t b1) {
  static_assert(kIs16Bit<T>);
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

template <class T>
__device__ uint32_t address_of(Shared<T> pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer.data()));
}

// Loads four matrices of 8 x 8 16-bit elements. Lane l gives the address of row l % 8 of matrix
// l / 8: 16 bytes, aligned. r[i] of lane l is elements (l / 4, 2 (l % 4)) and the next one in the
// row of matrix i.
template <class T>
__device__ void ldmatrix(uint32_t (&r)[4], Shared<T> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address_of(row))
               : "memory");
}

// The same with each matrix transposed: elements (2 (l % 4), l / 4) and the next one in the column.
template <class T>
__device__ void ldmatrix_transposed(uint32_t (&r)[4], Shared<T> row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address_of(row))
               : "memory");
}

// --- asynchronous copies from global to shared memory (sm_80) ---
//
// A thread's copies are there for itself after copies_wait, and for its block after a barrier that
// follows.

// Copies kBytes (4 or 16) bytes, aligned, from element i of `from`. If not `valid`, it writes zeros
// instead and reads nothing.
template <int kBytes, class T>
__device__ void copy_async(Shared<T> to, Global<const T> from, int64_t i, bool valid) {
  static_assert(kBytes == 4 || kBytes == 16);
  const T* const source = from.template address<kBytes>(valid ? i : 0, valid);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(to)), "l"(source),
                 "r"(valid ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address_of(to)), "l"(source),
                 "r"(valid ? 4 : 0)
                 : "memory");
  }
}

// Closes the group of the thread's copies since the last call.
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of the thread's groups are under way.
template <int kPending>
__device__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tandem::ptx
