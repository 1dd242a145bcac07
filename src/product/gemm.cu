#include "src/device/global.h"
#include "src/kernels/launch.cuh"
#include "src/product/gemm.h"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;

// One thread per element.
template <class C>
__global__ void scale_rows_kernel(int64_t m, int64_t n, float beta, Global<C> c, int64_t ldc,
                                  Global<const C> bias) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= m * n) {
    return;
  }
  const int64_t row = i / n, column = i % n, at = row * ldc + column;
  const float scaled = beta == 0 ? 0.0f : beta * float(c.load(at));
  c.store(at, C(scaled + (bias ? float(bias.load(column)) : 0.0f)));
}

}  // namespace

template <class C>
void scale_rows(Cuda device, int64_t m, int64_t n, float beta, C* c, int64_t ldc, const C* bias) {
  launch<scale_rows_kernel<C>>(device, blocks_for(m * n, kThreads), kThreads, 0, m, n, beta, c, ldc,
                               bias);
}

template void scale_rows<float>(Cuda, int64_t, int64_t, float, float*, int64_t, const float*);
template void scale_rows<Bf16>(Cuda, int64_t, int64_t, float, Bf16*, int64_t, const Bf16*);
template void scale_rows<Fp16>(Cuda, int64_t, int64_t, float, Fp16*, int64_t, const Fp16*);

}  // namespace tandem::kernels
