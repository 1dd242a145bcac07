// Sums and maxima over the threads of a warp or a block. The order of operations is fixed, so the
// bits are the same every time.
#pragma once

#include "src/kernels/launch.cuh"

namespace tandem {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// The largest value of the 32 lanes of a warp if kMax, otherwise their sum. Every lane must call
// this, and every lane gets the result.
template <bool kMax, class T>
__device__ T warp_reduce(T value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, distance);
    if constexpr (kMax) {
      value = other > value ? other : value;
    } else {
      value += other;
    }
  }
  return value;
}

template <class T>
__device__ T warp_sum(T value) {
  return warp_reduce<false>(value);
}

// The same over all threads of a block, which must be one-dimensional and consist of whole warps.
// Every thread must call this, and every thread gets the result.
template <bool kMax, class T>
__device__ T block_reduce(T value) {
  struct Partial {
    T of_warp[kWarp];
  };
  Partial& partial = shared<Partial>();
  value = warp_reduce<kMax>(value);
  if (threadIdx.x % kWarp == 0) {
    partial.of_warp[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  // Lanes without a warp read the first warp's value. A maximum does not change by that; in a sum
  // they have zero.
  value = partial.of_warp[lane < warps ? lane : 0];
  value = warp_reduce<kMax>(kMax || lane < warps ? value : T(0));
  __syncthreads();  // `partial` may be used again
  return value;
}

template <class T>
__device__ T block_sum(T value) {
  return block_reduce<false>(value);
}

template <class T>
__device__ T block_max(T value) {
  return block_reduce<true>(value);
}

}  // namespace tandem
