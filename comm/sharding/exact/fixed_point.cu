#include "comm/sharding/exact/fixed_point_functions.h"
#include "src/device/global.h"
#include "src/kernels/block.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;
constexpr int kThreadElements = 8;
constexpr int kBlockElements = kThreads * kThreadElements;

// Calls f(i) for the elements of this thread. Neighbouring elements go to neighbouring threads.
template <class F>
__device__ void for_elements(int64_t n, F f) {
  const int64_t first = int64_t{blockIdx.x} * kBlockElements + threadIdx.x;
#pragma unroll
  for (int j = 0; j < kThreadElements; ++j) {
    if (const int64_t i = first + j * kThreads; i < n) {
      f(i);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    quantise_kernel(int64_t n, Global<const float> from, FixedPoint fixed_point, Global<int64_t> to,
                    bool add, Global<int32_t> largest) {
  int32_t most = 0;
  for_elements(n, [&](int64_t i) {
    const float x = from.load(i);
    const int32_t magnitude = math::magnitude_bits(x);
    most = magnitude > most ? magnitude : most;
    to.store(i, fixed_point(x) + (add ? to.load(i) : 0));
  });
  most = block_max(most);
  if (threadIdx.x == 0) {
    largest.atomic_max(0, most);
  }
}

__global__ void __launch_bounds__(kThreads)
    dequantise_kernel(int64_t n, Global<const int64_t> from, FloatingPoint value,
                      Global<float> to) {
  for_elements(n, [&](int64_t i) { to.store(i, value(from.load(i))); });
}

__global__ void __launch_bounds__(kThreads)
    add_squares_kernel(int64_t n, Global<const float> x, FixedPoint fixed_point,
                       Global<int64_t> digits) {
  SquareDigits sums;
  for_elements(n, [&](int64_t i) { sums.add(fixed_point, x.load(i)); });
#pragma unroll
  for (int digit = 0; digit <= kSquareDigits; ++digit) {
    const int64_t total = block_sum(sums.of[digit]);
    if (threadIdx.x == 0) {
      digits.atomic_add(digit, total);
    }
  }
}

template <auto kKernel, class... A>
void launch_for(Cuda device, int64_t n, A... arguments) {
  if (n > 0) {
    launch<kKernel>(device, blocks_for(n, kBlockElements), kThreads, 0, n, arguments...);
  }
}

}  // namespace

void quantise(Cuda device, int64_t n, const float* from, double scale, double limit, int64_t* to,
              bool add, int32_t* largest) {
  launch_for<quantise_kernel>(device, n, from, FixedPoint{scale, limit}, to, add, largest);
}

void dequantise(Cuda device, int64_t n, const int64_t* from, double scale, float* to) {
  launch_for<dequantise_kernel>(device, n, from, FloatingPoint{scale}, to);
}

void add_squares(Cuda device, int64_t n, const float* x, double scale, int64_t* digits) {
  launch_for<add_squares_kernel>(device, n, x, FixedPoint{scale, kSquareLimit}, digits);
}

}  // namespace tandem::kernels
