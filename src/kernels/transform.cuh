// transform() of map.h on a GPU. If all pointers are aligned to 16 bytes, a thread takes as many
// neighbours as fit in 16 bytes of the smallest type; otherwise one element.
#pragma once

#include <algorithm>

#include "src/kernels/launch.cuh"
#include "src/kernels/pack.cuh"

namespace tandem {

namespace transform_detail {

inline constexpr int kThreads = 256;

template <int kCount, class To, class F, class... From>
__device__ void apply(int64_t i, Global<To> to, F f, Global<const From>... from) {
  const auto values = [&](const Elements<From, kCount>&... inputs) {
    Elements<Wide<To>, kCount> results;  // rounded where they are stored: in pairs
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      results.of[j] = f(Wide<From>(inputs.of[j])...);
    }
    return results;
  }(load_elements<kCount>(from, i)...);
  store_pack(to, i, values.of);
}

template <int kCount, class To, class F, class... From>
__global__ void __launch_bounds__(kThreads)
    transform_kernel(int64_t n, Global<To> to, F f, Global<const From>... from) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (i + kCount <= n) {
    apply<kCount, To, F, From...>(i, to, f, from...);
  } else {
    for (int64_t j = i; j < n; ++j) {
      apply<1, To, F, From...>(j, to, f, from...);
    }
  }
}

}  // namespace transform_detail

template <class To, class F, class... From>
void transform(Cuda device, int64_t n, To* to, F f, const From*... from) {
  using namespace transform_detail;
  constexpr int kWidth = std::max({kPack<To>, kPack<From>...});
  if (n == 0) {
    return;
  }
  with_pack<kWidth>(aligned16(static_cast<const To*>(to), from...), [&]<int kCount>() {
    launch<transform_kernel<kCount, To, F, From...>>(device, blocks_for(n, kThreads * kCount),
                                                     kThreads, 0, n, to, f, from...);
  });
}

}  // namespace tandem
