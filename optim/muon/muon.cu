#include "optim/flat_optimizer.cuh"
#include "optim/muon/muon.h"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;

template <int kCount, class T>
__global__ void __launch_bounds__(kThreads)
    divide_by_norm_kernel(int64_t n, Global<const T> from, Global<const double> square,
                          Global<T> to) {
  const float norm = norm_of<T>(square.load(0));
  const auto divide = [&]<int kSome>(int64_t i) {
    float values[kSome];
    load_pack(from, i, values);
#pragma unroll
    for (int j = 0; j < kSome; ++j) {
      values[j] /= norm;
    }
    store_pack(to, i, values);
  };
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (first + kCount <= n) {
    divide.template operator()<kCount>(first);
  } else {
    for (int64_t i = first; i < n; ++i) {
      divide.template operator()<1>(i);
    }
  }
}

}  // namespace

template <class T>
void divide_by_norm(Cuda device, int64_t n, const T* from, const double* square, T* to) {
  with_pack<T, T>(aligned16(from, to), [&]<int kCount>() {
    launch<divide_by_norm_kernel<kCount, T>>(device, blocks_for(n, kThreads * kCount), kThreads, 0,
                                             n, from, square, to);
  });
}

template void divide_by_norm<float>(Cuda, int64_t, const float*, const double*, float*);
template void divide_by_norm<Bf16>(Cuda, int64_t, const Bf16*, const double*, Bf16*);

TANDEM_UPDATE(MuonMomentum)
TANDEM_UPDATE(MuonMove)

}  // namespace tandem::kernels
