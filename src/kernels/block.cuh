// Sums and maxima over the threads of a warp or a block. The order of operations is fixed, so the
// bits are the same every time.
#pragma once

#include "src/kernels/launch.cuh"

namespace tandem {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Over the 32 lanes of a warp. Every lane must call this, and every lane gets the result.
template <class T>
__device__ T warp_sum(T value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

template <class T>
__device__ T warp_max(T value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

// Over all threads of a block, which must be one-dimensional and consist of whole warps. Every
// thread must call this, and every thread gets the result.
template <class T, class Combine>
__device__ T block_reduce(T value, Combine combine) {
  struct Partial {
    T of_warp[kWarp];
  };
  Partial& partial = shared<Partial>();
  value = combine(value);
  if (threadIdx.x % kWarp == 0) {
    partial.of_warp[threadIdx.x / kWarp] = value;
  }
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  // Lanes without a warp read the first warp's value. A maximum does not change by that; for a sum,
  // idle() replaces the value by zero.
  value = combine.idle(partial.of_warp[lane < warps ? lane : 0], lane < warps);
  value = combine(value);
  __syncthreads();  // `partial` may be used again
  return value;
}

struct WarpSum {
  template <class T>
  __device__ T operator()(T value) const {
    return warp_sum(value);
  }
  template <class T>
  __device__ T idle(T value, bool used) const {
    return used ? value : T(0);
  }
};

struct WarpMax {
  template <class T>
  __device__ T operator()(T value) const {
    return warp_max(value);
  }
  template <class T>
  __device__ T idle(T value, bool) const {
    return value;
  }
};

template <class T>
__device__ T block_sum(T value) {
  return block_reduce(value, WarpSum{});
}

template <class T>
__device__ T block_max(T value) {
  return block_reduce(value, WarpMax{});
}

}  // namespace tandem
