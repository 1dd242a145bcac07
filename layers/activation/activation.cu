#include "layers/activation/activation.h"
#include "src/kernels/pack.cuh"
#include "src/kernels/sigmoid.cuh"
#include "src/kernels/transform.cuh"

namespace tandem::kernels {

namespace {

template <int kWidth, class T>
__global__ void __launch_bounds__(kMatrixThreads)
    swiglu_forward_kernel(Global<const T> x, Global<T> y, int64_t rows, int64_t width) {
  for_matrix<kWidth>(rows, width, [&](int64_t r, int64_t j) {
    float gate[kWidth], up[kWidth];
    load_pack(x, 2 * r * width + j, gate);
    load_pack(x, (2 * r + 1) * width + j, up);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      up[k] *= Silu::value<GpuSigmoid>(gate[k]);
    }
    store_pack(y, r * width + j, up);
  });
}

template <int kWidth, bool kAdds, class T>
__global__ void __launch_bounds__(kMatrixThreads)
    swiglu_backward_kernel(Global<const T> dy, Global<const T> x, Global<T> dx, int64_t rows,
                           int64_t width) {
  for_matrix<kWidth>(rows, width, [&](int64_t r, int64_t j) {
    const int64_t at_gate = 2 * r * width + j, at_up = at_gate + width;
    float d[kWidth], gate[kWidth], up[kWidth], dgate[kWidth] = {}, dup[kWidth] = {};
    load_pack(dy, r * width + j, d);
    load_pack(x, at_gate, gate);
    load_pack(x, at_up, up);
    if constexpr (kAdds) {
      load_pack(dx, at_gate, dgate);
      load_pack(dx, at_up, dup);
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      dgate[k] += d[k] * up[k] * Silu::slope<GpuSigmoid>(gate[k]);
      dup[k] += d[k] * Silu::value<GpuSigmoid>(gate[k]);
    }
    store_pack(dx, at_gate, dgate);
    store_pack(dx, at_up, dup);
  });
}

}  // namespace

template <class T>
void swiglu_forward(Cuda device, const T* x, T* y, int64_t rows, int64_t width) {
  if (rows * width == 0) {
    return;
  }
  with_pack<T>(packs_fit(width, x, y), [&]<int kWidth>() {
    launch<swiglu_forward_kernel<kWidth, T>>(device, matrix_grid(rows, width, kWidth),
                                             matrix_block(), 0, x, y, rows, width);
  });
}

template <class T>
void swiglu_backward(Cuda device, const T* dy, const T* x, T* dx, Wide<T> beta, int64_t rows,
                     int64_t width) {
  if (rows * width == 0) {
    return;
  }
  with_pack<T>(packs_fit(width, dy, x, dx), [&]<int kWidth>() {
    const dim3 grid = matrix_grid(rows, width, kWidth);
    if (beta == 0) {
      launch<swiglu_backward_kernel<kWidth, false, T>>(device, grid, matrix_block(), 0, dy, x, dx,
                                                       rows, width);
    } else {
      launch<swiglu_backward_kernel<kWidth, true, T>>(device, grid, matrix_block(), 0, dy, x, dx,
                                                      rows, width);
    }
  });
}

#define TANDEM_SWIGLU(T)                                                 \
  template void swiglu_forward<T>(Cuda, const T*, T*, int64_t, int64_t); \
  template void swiglu_backward<T>(Cuda, const T*, const T*, T*, float, int64_t, int64_t);
TANDEM_FOR_GPU(TANDEM_SWIGLU)

}  // namespace tandem::kernels
