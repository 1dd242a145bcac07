#include "comm/sharding/sum_parts.h"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;

// A thread adds kCount neighbouring elements of all chunks.
template <int kCount, class From, class To>
__global__ void __launch_bounds__(kThreads)
    sum_parts_kernel(int64_t parts, int64_t n, Global<const From> from, Global<To> to) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (i >= n) {
    return;
  }
  float sums[kCount];
  load_pack(from, i, sums);
  for (int64_t part = 1; part < parts; ++part) {
    float values[kCount];
    load_pack(from, part * n + i, values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      sums[j] += values[j];
    }
  }
  store_pack(to, i, sums);
}

}  // namespace

template <class From, class To>
void sum_parts(Cuda device, int64_t parts, int64_t n, const From* from, To* to) {
  if (n == 0) {
    return;
  }
  with_pack<From, To>(packs_fit(n, from, to), [&]<int kCount>() {
    launch<sum_parts_kernel<kCount, From, To>>(device, blocks_for(n, kThreads * kCount), kThreads,
                                               0, parts, n, from, to);
  });
}

template void sum_parts<Bf16>(Cuda, int64_t, int64_t, const Bf16*, float*);
template void sum_parts<Bf16>(Cuda, int64_t, int64_t, const Bf16*, Bf16*);

}  // namespace tandem::kernels
