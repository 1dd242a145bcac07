#include <bit>

#include "layers/cross_entropy/cross_entropy.h"
#include "src/device/cuda.h"
#include "src/device/ptx.cuh"
#include "src/kernels/block.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;

__device__ float exp_of(float x) { return ptx::exp2(x * 1.44269504f); }  // log2(e)

// Calls f<kCount>(i) for elements [i, i + kCount) that together cover [first, last) of an array.
// Each element is visited by one thread of the block. Elements in whole 16-byte packs are visited
// as packs, those before and after one by one (`first` may lie inside a pack).
template <class T, class F>
__device__ void visit(int64_t first, int64_t last, bool aligned, F f) {
  const int64_t next_pack = (first + kPack<T> - 1) / kPack<T> * kPack<T>;
  const int64_t packs = aligned && next_pack < last ? next_pack : last;
  const int64_t packs_end = last - (last - packs) % kPack<T>;
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t i = first + thread; i < packs; i += kThreads) {
    f.template operator()<1>(i);
  }
  for (int64_t i = packs + thread * kPack<T>; i < packs_end; i += kThreads * kPack<T>) {
    f.template operator()<kPack<T>>(i);
  }
  for (int64_t i = packs_end + thread; i < last; i += kThreads) {
    f.template operator()<1>(i);
  }
}

template <class T>
__device__ void set_to_zero(Global<T> logits, int64_t first, int64_t last, bool aligned) {
  visit<T>(first, last, aligned, [&]<int kCount>(int64_t i) {
    const float zeros[kCount] = {};
    store_pack(logits, i, zeros);
  });
}

// The number that is subtracted from exponents: the largest logit, or 0 if that is -infinity,
// because -infinity minus itself is NaN.
__device__ float base_of(float largest) { return largest == -INFINITY ? 0.0f : largest; }

// The sum of exp(x - base_of(largest)) over the logits seen so far (Milakov and Gimelshein 2018,
// arXiv:1805.02867). If a logit is NaN, so is the sum.
struct OnlineSum {
  float largest = -INFINITY;
  float total = 0;

  template <int kCount>
  __device__ void add(const float (&x)[kCount]) {
    const float before = largest;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      largest = x[k] > largest ? x[k] : largest;
    }
    const float base = base_of(largest);
    total *= exp_of(before - base);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      total += exp_of(x[k] - base);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_forward_kernel(Global<const T> logits, Global<const int32_t> targets,
                                 Global<float> losses, Global<float> log_sum, LogitRows shape,
                                 bool aligned) {
  const int64_t row = blockIdx.x, first = row * shape.width;
  const int32_t target = targets.load(row);
  float loss = 0, log_total = 0;
  if (target != kIgnoreTarget) {
    OnlineSum sum;
    visit<T>(first, first + shape.classes, aligned, [&]<int kCount>(int64_t i) {
      float x[kCount];
      load_pack(logits, i, x);
      sum.add(x);
    });
    const float base = base_of(block_max(sum.largest));
    log_total = base + logf(block_sum(sum.total * exp_of(sum.largest - base)));
    loss = log_total - float(logits.load(first + target));
  }
  if (threadIdx.x == 0) {
    losses.store(row, loss);
    log_sum.store(row, log_total);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_backward_kernel(Global<const float> dlosses, Global<const int32_t> targets,
                                  Global<const float> log_sum, Global<T> logits, LogitRows shape,
                                  bool aligned) {
  const int64_t row = blockIdx.x, first = row * shape.width;
  const int32_t target = targets.load(row);
  if (target == kIgnoreTarget) {
    set_to_zero(logits, first, first + shape.width, aligned);
    return;
  }
  set_to_zero(logits, first + shape.classes, first + shape.width, aligned);
  const float scale = dlosses.load(row), offset = log_sum.load(row);
  const int64_t at_target = first + target;
  visit<T>(first, first + shape.classes, aligned, [&]<int kCount>(int64_t i) {
    float x[kCount];
    load_pack(logits, i, x);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      x[k] = exp_of(x[k] - offset) * scale - (i + k == at_target ? scale : 0.0f);
    }
    store_pack(logits, i, x);
  });
}

// Numbers with the same order as the floats. Of equal floats (-0 equals 0) the one in the lower
// column is larger.
__device__ uint64_t rank_of(float x, int64_t column) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(column);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    count_correct_kernel(Global<const T> logits, Global<const int32_t> targets, LogitRows shape,
                         bool aligned, Global<int64_t> result) {
  const int64_t row = blockIdx.x, first = row * shape.width;
  const int32_t target = targets.load(row);
  if (target == kIgnoreTarget) {
    return;
  }
  uint64_t best = 0;
  visit<T>(first, first + shape.classes, aligned, [&]<int kCount>(int64_t i) {
    float x[kCount];
    load_pack(logits, i, x);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const uint64_t rank = rank_of(x[k], i + k - first);
      best = rank > best ? rank : best;
    }
  });
  best = block_max(best);
  if (threadIdx.x == 0 && ~static_cast<uint32_t>(best) == static_cast<uint32_t>(target)) {
    result.atomic_add(0, 1);  // integers: every order gives the same sum
  }
}

}  // namespace

template <class T>
void cross_entropy_forward(Cuda device, const T* logits, const int32_t* targets, Wide<T>* losses,
                           Wide<T>* log_sum, LogitRows shape) {
  if (shape.rows > 0) {
    launch<cross_entropy_forward_kernel<T>>(device, blocks_for(shape.rows, 1), kThreads, 0, logits,
                                            targets, losses, log_sum, shape, aligned16(logits));
  }
}

template <class T>
void cross_entropy_backward(Cuda device, const Wide<T>* dlosses, const int32_t* targets,
                            const Wide<T>* log_sum, T* logits, LogitRows shape) {
  if (shape.rows > 0) {
    launch<cross_entropy_backward_kernel<T>>(device, blocks_for(shape.rows, 1), kThreads, 0,
                                             dlosses, targets, log_sum, logits, shape,
                                             aligned16(logits));
  }
}

template <class T>
void count_correct(Cuda device, const T* logits, const int32_t* targets, LogitRows shape,
                   int64_t* result) {
  cuda::zero(result, sizeof *result, device.stream);
  if (shape.rows > 0) {
    launch<count_correct_kernel<T>>(device, blocks_for(shape.rows, 1), kThreads, 0, logits, targets,
                                    shape, aligned16(logits), result);
  }
}

template void cross_entropy_forward<float>(Cuda, const float*, const int32_t*, float*, float*,
                                           LogitRows);
template void cross_entropy_forward<Bf16>(Cuda, const Bf16*, const int32_t*, float*, float*,
                                          LogitRows);
template void cross_entropy_forward<Fp16>(Cuda, const Fp16*, const int32_t*, float*, float*,
                                          LogitRows);
template void cross_entropy_backward<float>(Cuda, const float*, const int32_t*, const float*,
                                            float*, LogitRows);
template void cross_entropy_backward<Bf16>(Cuda, const float*, const int32_t*, const float*, Bf16*,
                                           LogitRows);
template void cross_entropy_backward<Fp16>(Cuda, const float*, const int32_t*, const float*, Fp16*,
                                           LogitRows);
template void count_correct<float>(Cuda, const float*, const int32_t*, LogitRows, int64_t*);
template void count_correct<Bf16>(Cuda, const Bf16*, const int32_t*, LogitRows, int64_t*);
template void count_correct<Fp16>(Cuda, const Fp16*, const int32_t*, LogitRows, int64_t*);

}  // namespace tandem::kernels
