// The CUDA functions of flat_optimizer.h.
#pragma once

#include <span>
#include <utility>

#include "optim/optimizer.h"
#include "optim/shard_arrays.h"
#include "src/kernels/launch.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

inline constexpr int kUpdateThreads = 256;

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
                          Global<float> value, T* working, Global<State>... state) {
  const auto gradients = load_elements<kCount, float>(grad, i);
  [&](Elements<float, kCount> values, Elements<State, kCount>... states) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      rule(gradients.of[j], values.of[j], states.of[j]...);
    }
    store_pack(value, i, values.of);
    (store_pack(state, i, states.of), ...);
    if constexpr (kIs16Bit<T>) {
      store_pack(Global<T>(working), i, values.of);
    }
  }(load_elements<kCount, float>(value, i), load_elements<kCount, State>(state, i)...);
}

// A block updates one chunk; each thread as many neighbouring elements as 16 bytes of f32 hold.
template <class Rule, class T>
__device__ void update_chunk(const typename Rule::Scalars& scalars, const ShardArrays& shard,
                             int64_t number) {
  const Rule rule(scalars, shard.decay != 0);
  const int64_t first = number * kChunkElements;
  const int64_t end = first + kChunkElements;
  const int64_t last = end < shard.elements ? end : shard.elements;
  const int64_t packs_end = shard.aligned != 0 ? last - (last - first) % kPack<float> : first;
  [&]<size_t... kSlot>(std::index_sequence<kSlot...>) {
    const auto update = [&]<int kCount>(int64_t i) {
      update_at<kCount, Rule, T>(i, rule, shard.grad, shard.value, static_cast<T*>(shard.working),
                                 Global<float>(shard.state[kSlot])...);
    };
    for (int64_t i = first + threadIdx.x * kPack<float>; i < packs_end;
         i += kUpdateThreads * kPack<float>) {
      update.template operator()<kPack<float>>(i);
    }
    for (int64_t i = packs_end + threadIdx.x; i < last; i += kUpdateThreads) {
      update.template operator()<1>(i);
    }
  }
  (std::make_index_sequence<Rule::kSlots.size()>());
}

template <class Rule, class T>
__global__ void __launch_bounds__(kUpdateThreads)
    update_shards_kernel(Global<const typename Rule::Scalars> scalars,
                         ArrayList<ShardArrays> list) {
  const typename Rule::Scalars shared_by_all = scalars.load(0);
  if (shared_by_all.apply != 0) {
    const ArrayChunk chunk = Global<const ArrayChunk>(list.chunks).load(blockIdx.x);
    const ShardArrays shard = Global<const ShardArrays>(list.arrays).load(chunk.array);
    update_chunk<Rule, T>(shared_by_all, shard, chunk.number);
  }
}

template <class Rule, class T>
__global__ void __launch_bounds__(kUpdateThreads)
    update_shard_kernel(Global<const typename Rule::Scalars> scalars, ShardArrays shard) {
  const typename Rule::Scalars shared_by_all = scalars.load(0);
  if (shared_by_all.apply != 0) {
    update_chunk<Rule, T>(shared_by_all, shard, blockIdx.x);
  }
}

template <class Rule>
void prepare_update(Cuda device, const typename Rule::Options& options, const StepInputs& inputs,
                    typename Rule::Scalars* scalars) {
  launch<prepare_update_kernel<Rule>>(device, 1, 1, 0, options, inputs.numbers, inputs.state,
                                      scalars);
}

template <class Rule>
void update_shards(Cuda device, const typename Rule::Scalars* scalars, DType working,
                   const ArrayList<ShardArrays>& shards) {
  if (shards.chunk_count > 0) {
    on_working_type(working, [&]<class T>() {
      launch<update_shards_kernel<Rule, T>>(device, blocks_for(shards.chunk_count, 1),
                                            kUpdateThreads, 0, scalars, shards);
    });
  }
}

template <class Rule>
void update_shards(Cuda device, const typename Rule::Scalars* scalars, DType working,
                   std::span<const ShardArrays, 1> shard) {
  if (shard[0].elements == 0) {
    return;
  }
  on_working_type(working, [&]<class T>() {
    launch<update_shard_kernel<Rule, T>>(device, blocks_for(shard[0].elements, kChunkElements),
                                         kUpdateThreads, 0, scalars, shard[0]);
  });
}

// The kernels of one rule, for the file that is compiled for GPUs.
#define TANDEM_UPDATE(Rule)                                                         \
  template void prepare_update<Rule>(Cuda, const Rule::Options&, const StepInputs&, \
                                     Rule::Scalars*);                               \
  template void update_shards<Rule>(Cuda, const Rule::Scalars*, DType,              \
                                    const ArrayList<ShardArrays>&);                 \
  template void update_shards<Rule>(Cuda, const Rule::Scalars*, DType,              \
                                    std::span<const ShardArrays, 1>);

}  // namespace tandem::kernels
