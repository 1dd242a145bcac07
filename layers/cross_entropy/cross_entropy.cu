#include <bit>

#include "layers/cross_entropy/cross_entropy.h"
#include "src/device/cuda.h"
#include "src/device/ptx.cuh"
#include "src/kernels/block.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256, kThreadsOfLongRows = 1024;
constexpr int64_t kLongRowBytes = 32 * 1024;
// Shared memory for the sums of a block, beside the row that it holds.
constexpr int64_t kSumBytes = 1024;

__device__ float exp_of(float x) { return ptx::exp2(x * 1.44269504f); }  // log2(e)

// The row of a block. Elements are counted from the last 16-byte boundary before the row, so
// element `begin` is the first one, and packs begin at multiples of kPack<T>.
template <class T>
struct Row {
  Global<T> data;
  int begin, classes_end, end;
  bool aligned;  // the logits are: packs can be accessed as such

  __device__ Row(Global<T> logits, LogitRows shape, bool logits_aligned) : aligned(logits_aligned) {
    const int64_t first = blockIdx.x * shape.width;
    begin = static_cast<int>(first % kPack<T>);
    data = logits + (first - begin);
    classes_end = begin + static_cast<int>(shape.classes);
    end = begin + static_cast<int>(shape.width);
  }
};

// Calls f<kCount>(i) for elements [i, i + kCount) that together cover [first, last). Each element
// is visited by one thread of the block, and by the same one in each call. Elements in whole packs
// are visited as packs, those before and after one by one.
template <int kBlock, class T, class F>
__device__ void visit(int first, int last, bool aligned, F f) {
  const int next_pack = (first + kPack<T> - 1) / kPack<T> * kPack<T>;
  const int packs = aligned && next_pack < last ? next_pack : last;
  const int packs_end = last - (last - packs) % kPack<T>;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = first + thread; i < packs; i += kBlock) {
    f.template operator()<1>(i);
  }
#pragma unroll 4
  for (int i = packs + thread * kPack<T>; i < packs_end; i += kBlock * kPack<T>) {
    f.template operator()<kPack<T>>(i);
  }
  for (int i = packs_end + thread; i < last; i += kBlock) {
    f.template operator()<1>(i);
  }
}

template <int kBlock, class T>
__device__ void set_to_zero(const Row<T>& row, int first) {
  visit<kBlock, T>(first, row.end, row.aligned, [&]<int kCount>(int i) {
    const float zeros[kCount] = {};
    store_pack(row.data, i, zeros);
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

  template <class T, int kCount>
  __device__ void add(const Elements<T, kCount>& x) {
    const float before = largest;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float value = x.of[k];
      largest = value > largest ? value : largest;
    }
    const float base = base_of(largest);
    total *= exp_of(before - base);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      total += exp_of(float(x.of[k]) - base);
    }
  }

  // The logarithm of the sum over the whole block. Every thread must call this.
  __device__ float log_of_block() const {
    const float base = base_of(block_max(largest));
    return base + logf(block_sum(total * exp_of(largest - base)));
  }
};

template <int kBlock, class T>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_kernel(Global<const T> logits, Global<const int32_t> targets,
                         Global<float> losses, LogitRows shape, bool aligned) {
  const Row<const T> row(logits, shape, aligned);
  const int32_t target = targets.load(blockIdx.x);
  float loss = 0;
  if (target != kIgnoreTarget) {
    OnlineSum sum;
    visit<kBlock, T>(row.begin, row.classes_end, aligned,
                     [&]<int kCount>(int i) { sum.add(load_elements<kCount, T>(row.data, i)); });
    loss = sum.log_of_block() - float(row.data.load(row.begin + target));
  }
  if (threadIdx.x == 0) {
    losses.store(blockIdx.x, loss);
  }
}

// A row in shared memory. A thread reads what it stored itself, so no barrier is needed.
template <class T>
struct HeldRow {
  T* elements;

  template <int kCount>
  __device__ Elements<T, kCount> load(int i) const {
    if constexpr (kCount == 1) {
      return {elements[i]};
    } else {
      return std::bit_cast<Elements<T, kCount>>(*reinterpret_cast<const Pack<T>*>(elements + i));
    }
  }
  template <int kCount>
  __device__ void store(int i, const Elements<T, kCount>& x) const {
    if constexpr (kCount == 1) {
      elements[i] = x.of[0];
    } else {
      *reinterpret_cast<Pack<T>*>(elements + i) = std::bit_cast<Pack<T>>(x);
    }
  }
};

// If kHeld, the row's logits stay in shared memory between their sum and their gradient, so each is
// read once.
template <bool kHeld, int kBlock, class T>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_gradient_kernel(Global<T> logits, Global<const int32_t> targets,
                                  Global<float> losses, Global<const float> scales,
                                  int64_t scale_stride, LogitRows shape, bool aligned) {
  const Row<T> row(logits, shape, aligned);
  const int32_t target = targets.load(blockIdx.x);
  float loss = 0;
  if (target == kIgnoreTarget) {
    set_to_zero<kBlock>(row, row.begin);
  } else {
    const HeldRow<T> held{kHeld ? dynamic_shared<T>() : nullptr};
    const int at_target = row.begin + target;
    const float target_logit = threadIdx.x == 0 ? float(row.data.load(at_target)) : 0.0f;
    OnlineSum sum;
    visit<kBlock, T>(row.begin, row.classes_end, aligned, [&]<int kCount>(int i) {
      const auto x = load_elements<kCount, T>(row.data, i);
      if constexpr (kHeld) {
        held.store(i, x);
      }
      sum.add(x);
    });
    const float log_sum = sum.log_of_block();  // after it, the target's logit may be overwritten
    const float scale = scales.load(blockIdx.x * scale_stride);
    visit<kBlock, T>(row.begin, row.classes_end, aligned, [&]<int kCount>(int i) {
      const Elements<T, kCount> x =
          kHeld ? held.template load<kCount>(i) : load_elements<kCount, T>(row.data, i);
      float gradient[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        gradient[k] =
            exp_of(float(x.of[k]) - log_sum) * scale - (i + k == at_target ? scale : 0.0f);
      }
      store_pack(row.data, i, gradient);
    });
    set_to_zero<kBlock>(row, row.classes_end);
    loss = log_sum - target_logit;
  }
  if (losses && threadIdx.x == 0) {
    losses.store(blockIdx.x, loss);
  }
}

// Numbers with the same order as the floats. Of equal floats (-0 equals 0) the one in the lower
// column is larger.
__device__ uint64_t rank_of(float x, int column) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(column);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    count_correct_kernel(Global<const T> logits, Global<const int32_t> targets, LogitRows shape,
                         bool aligned, Global<int64_t> result) {
  const Row<const T> row(logits, shape, aligned);
  const int32_t target = targets.load(blockIdx.x);
  if (target == kIgnoreTarget) {
    return;
  }
  uint64_t best = 0;
  visit<kThreads, T>(row.begin, row.classes_end, aligned, [&]<int kCount>(int i) {
    float x[kCount];
    load_pack(row.data, i, x);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const uint64_t rank = rank_of(x[k], i + k - row.begin);
      best = rank > best ? rank : best;
    }
  });
  best = block_max(best);
  if (threadIdx.x == 0 && ~static_cast<uint32_t>(best) == static_cast<uint32_t>(target)) {
    result.atomic_add(0, 1);  // integers: every order gives the same sum
  }
}

// Calls f<kBlock>() with the number of threads for a row.
template <class T, class F>
void with_threads(LogitRows shape, F f) {
  shape.classes* int64_t{sizeof(T)} > kLongRowBytes ? f.template operator()<kThreadsOfLongRows>()
                                                    : f.template operator()<kThreads>();
}

}  // namespace

template <class T>
void cross_entropy(Cuda device, const T* logits, const int32_t* targets, Wide<T>* losses,
                   LogitRows shape) {
  if (shape.rows > 0) {
    with_threads<T>(shape, [&]<int kBlock>() {
      launch<cross_entropy_kernel<kBlock, T>>(device, blocks_for(shape.rows, 1), kBlock, 0, logits,
                                              targets, losses, shape, aligned16(logits));
    });
  }
}

template <class T>
void cross_entropy_gradient(Cuda device, T* logits, const int32_t* targets, Wide<T>* losses,
                            RowScale<Wide<T>> scale, LogitRows shape) {
  const int64_t held_bytes = (shape.classes + 2 * kPack<T>)*int64_t{sizeof(T)} / 16 * 16;
  const auto start = [&]<bool kHeld, int kBlock>() {
    launch<cross_entropy_gradient_kernel<kHeld, kBlock, T>>(
        device, blocks_for(shape.rows, 1), kBlock, kHeld ? static_cast<size_t>(held_bytes) : 0,
        logits, targets, losses, scale.values, scale.stride, shape, aligned16(logits));
  };
  if (shape.rows == 0) {
    return;
  }
  if (held_bytes > cuda::largest_shared_bytes() - kSumBytes) {
    return start.template operator()<false, kThreadsOfLongRows>();
  }
  with_threads<T>(shape, [&]<int kBlock>() { start.template operator()<true, kBlock>(); });
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

template void cross_entropy<float>(Cuda, const float*, const int32_t*, float*, LogitRows);
template void cross_entropy<Bf16>(Cuda, const Bf16*, const int32_t*, float*, LogitRows);
template void cross_entropy<Fp16>(Cuda, const Fp16*, const int32_t*, float*, LogitRows);
template void cross_entropy_gradient<float>(Cuda, float*, const int32_t*, float*, RowScale<float>,
                                            LogitRows);
template void cross_entropy_gradient<Bf16>(Cuda, Bf16*, const int32_t*, float*, RowScale<float>,
                                           LogitRows);
template void cross_entropy_gradient<Fp16>(Cuda, Fp16*, const int32_t*, float*, RowScale<float>,
                                           LogitRows);
template void count_correct<float>(Cuda, const float*, const int32_t*, LogitRows, int64_t*);
template void count_correct<Bf16>(Cuda, const Bf16*, const int32_t*, LogitRows, int64_t*);
template void count_correct<Fp16>(Cuda, const Fp16*, const int32_t*, LogitRows, int64_t*);

}  // namespace tandem::kernels
