// The CUDA functions of flat_optimizer.h.
#pragma once

#include "optim/optimizer.h"
#include "src/kernels/launch.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace flat_optimizer_detail {

inline constexpr int kThreads = 256;

template <class Rule>
__global__ void prepare_update_kernel(typename Rule::Options options,
                                      Global<const StepNumbers> numbers,
                                      Global<const StepState> state,
                                      Global<typename Rule::Scalars> scalars) {
  scalars.store(0, Rule::prepare(options, numbers.load(0).lr, state.load(0)));
}

// Elements [i, i + kCount): all loads first, so that their latencies overlap.
template <int kCount, class Rule, class T, class... State>
__device__ void update_at(int64_t i, const Rule& rule, Global<const float> grad,
                          Global<float> value, Global<T> working, Global<State>... state) {
  const auto gradients = load_elements<kCount, float>(grad, i);
  [&](Elements<float, kCount> values, Elements<State, kCount>... states) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      rule(gradients.of[j], values.of[j], states.of[j]...);
    }
    store_pack(value, i, values.of);
    (store_pack(state, i, states.of), ...);
    if constexpr (kIs16Bit<T>) {
      store_pack(working, i, values.of);
    }
  }(load_elements<kCount, float>(value, i), load_elements<kCount, State>(state, i)...);
}

template <int kCount, class Rule, class T, class... State>
__global__ void __launch_bounds__(kThreads)
    update_shard_kernel(Global<const typename Rule::Scalars> scalars, bool decay, int64_t n,
                        Global<const float> grad, Global<float> value, Global<T> working,
                        Global<State>... state) {
  const typename Rule::Scalars shared_by_all = scalars.load(0);
  if (shared_by_all.apply == 0) {
    return;
  }
  const Rule rule(shared_by_all, decay);
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (i + kCount <= n) {
    update_at<kCount>(i, rule, grad, value, working, state...);
  } else {
    for (int64_t j = i; j < n; ++j) {
      update_at<1>(j, rule, grad, value, working, state...);
    }
  }
}

}  // namespace flat_optimizer_detail

template <class Rule>
void prepare_update(Cuda device, const typename Rule::Options& options, const StepInputs& inputs,
                    typename Rule::Scalars* scalars) {
  using namespace flat_optimizer_detail;
  launch<prepare_update_kernel<Rule>>(device, 1, 1, 0, options, inputs.numbers, inputs.state,
                                      scalars);
}

// Each thread updates as many neighbouring elements as 16 bytes of T hold.
template <class Rule, class T, class... State>
void update_shard(Cuda device, const typename Rule::Scalars* scalars, bool decay, int64_t n,
                  const float* grad, float* value, T* working, State*... state) {
  using namespace flat_optimizer_detail;
  if (n == 0) {
    return;
  }
  with_pack<T>(aligned16(grad, value, working, state...), [&]<int kCount>() {
    launch<update_shard_kernel<kCount, Rule, T, State...>>(device, blocks_for(n, kThreads * kCount),
                                                           kThreads, 0, scalars, decay, n, grad,
                                                           value, working, state...);
  });
}

}  // namespace tandem::kernels
