#include "layers/cross_entropy/cut_cross_entropy.h"
#include "layers/cross_entropy/logit_row.cuh"
#include "src/device/cuda.h"

namespace tandem::kernels {

namespace {

// A block takes one row.
template <int kBlock, class T>
__global__ void __launch_bounds__(kBlock)
    logit_parts_kernel(Global<const T> logits, Global<const int32_t> targets,
                       Global<LogitPart<float>> parts, LogitSlice slice, bool aligned) {
  const Row<const T> row(logits, targets, slice, blockIdx.x, aligned);
  OnlineSum sum;
  visit<kBlock, T>(row.begin, row.classes_end, aligned,
                   [&]<int kCount>(int i) { sum.add(load_elements<kCount, T>(row.data, i)); });
  const OnlineSum all = sum.of_block();
  if (threadIdx.x == 0) {
    const int64_t at = row.target - slice.first;
    const bool is_here = at >= 0 && at < slice.classes;
    parts.store(blockIdx.x,
                {all.largest, all.total, is_here ? float(row.data.load(row.begin + at)) : 0.0f});
  }
}

__global__ void __launch_bounds__(kThreads)
    join_logit_parts_kernel(Global<const LogitPart<float>> parts, int64_t ranks, int64_t rows,
                            Global<const int32_t> targets, Global<float> log_sums,
                            Global<float> losses) {
  const int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n >= rows) {
    return;
  }
  float largest = -INFINITY;
  for (int64_t r = 0; r < ranks; ++r) {
    largest = fmaxf(largest, parts.load(r * rows + n).largest);
  }
  const float base = base_of(largest);
  float sum = 0, target = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    const LogitPart<float> part = parts.load(r * rows + n);
    sum += part.sum * exp_of(part.largest - base);
    target += part.target;
  }
  const float log_sum = base + logf(sum);
  log_sums.store(n, log_sum);
  if (losses) {
    losses.store(n, targets.load(n) == kIgnoreTarget ? 0.0f : log_sum - target);
  }
}

template <int kBlock, class T>
__global__ void __launch_bounds__(kBlock)
    cut_gradient_kernel(Global<T> logits, Global<const int32_t> targets,
                        Global<const float> log_sums, Global<const float> scales,
                        int64_t scale_stride, LogitSlice slice, bool aligned) {
  const Row<T> row(logits, targets, slice, blockIdx.x, aligned);
  if (row.target == kIgnoreTarget) {
    return set_to_zero<kBlock>(row, row.begin);
  }
  const float log_sum = log_sums.load(blockIdx.x);
  const float scale = scales.load(blockIdx.x * scale_stride);
  const int64_t at_target = row.begin + row.target - slice.first;
  visit<kBlock, T>(row.begin, row.classes_end, aligned, [&]<int kCount>(int i) {
    const Elements<T, kCount> x = load_elements<kCount, T>(Global<const T>(row.data), i);
    float gradient[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      gradient[k] = exp_of(float(x.of[k]) - log_sum) * scale;
      gradient[k] = i + k == at_target ? gradient[k] - scale : gradient[k];
    }
    store_pack(row.data, i, gradient);
  });
  set_to_zero<kBlock>(row, row.classes_end);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    cut_count_correct_kernel(Global<const T> logits, Global<const int32_t> targets,
                             Global<const LogitPart<float>> parts, int64_t ranks, int64_t rank,
                             LogitSlice slice, bool aligned, Global<int64_t> result) {
  const Row<const T> row(logits, targets, slice, blockIdx.x, aligned);
  const int64_t at = row.target - slice.first;
  if (at < 0 || at >= slice.classes) {
    return;
  }
  const uint64_t best = largest_of<T>(row);
  if (threadIdx.x != 0 || ~static_cast<uint32_t>(best) != static_cast<uint32_t>(at)) {
    return;
  }
  const float logit = float(row.data.load(row.begin + at));
  for (int64_t r = 0; r < ranks; ++r) {
    const float other = parts.load(r * slice.rows + blockIdx.x).largest;
    if (!(r < rank ? other < logit : other <= logit)) {
      return;
    }
  }
  result.atomic_add(0, 1);  // integers: every order gives the same sum
}

}  // namespace

template <class T>
void logit_parts(Cuda device, const T* logits, const int32_t* targets, LogitPart<Wide<T>>* parts,
                 LogitSlice slice) {
  if (slice.rows > 0) {
    with_threads<T>(slice, [&]<int kBlock>() {
      launch<logit_parts_kernel<kBlock, T>>(device, blocks_for(slice.rows, 1), kBlock, 0, logits,
                                            targets, parts, slice, aligned16(logits));
    });
  }
}

template <>
void join_logit_parts(Cuda device, const LogitPart<float>* parts, int64_t ranks, int64_t rows,
                      const int32_t* targets, float* log_sums, float* losses) {
  if (rows > 0) {
    launch<join_logit_parts_kernel>(device, blocks_for(rows, kThreads), kThreads, 0, parts, ranks,
                                    rows, targets, log_sums, losses);
  }
}

template <class T>
void cut_cross_entropy_gradient(Cuda device, T* logits, const int32_t* targets,
                                const Wide<T>* log_sums, RowScale<Wide<T>> scale,
                                LogitSlice slice) {
  if (slice.rows > 0) {
    with_threads<T>(slice, [&]<int kBlock>() {
      launch<cut_gradient_kernel<kBlock, T>>(device, blocks_for(slice.rows, 1), kBlock, 0, logits,
                                             targets, log_sums, scale.values, scale.stride, slice,
                                             aligned16(logits));
    });
  }
}

template <class T>
void cut_count_correct(Cuda device, const T* logits, const int32_t* targets,
                       const LogitPart<Wide<T>>* parts, int64_t ranks, int64_t rank,
                       LogitSlice slice, int64_t* result) {
  cuda::zero(result, sizeof *result, device.stream);
  if (slice.rows > 0) {
    launch<cut_count_correct_kernel<T>>(device, blocks_for(slice.rows, 1), kThreads, 0, logits,
                                        targets, parts, ranks, rank, slice, aligned16(logits),
                                        result);
  }
}

#define TANDEM_CUT_CROSS_ENTROPY(T)                                                            \
  template void logit_parts<T>(Cuda, const T*, const int32_t*, LogitPart<float>*, LogitSlice); \
  template void cut_cross_entropy_gradient<T>(Cuda, T*, const int32_t*, const float*,          \
                                              RowScale<float>, LogitSlice);                    \
  template void cut_count_correct<T>(Cuda, const T*, const int32_t*, const LogitPart<float>*,  \
                                     int64_t, int64_t, LogitSlice, int64_t*);
TANDEM_FOR_GPU(TANDEM_CUT_CROSS_ENTROPY)

}  // namespace tandem::kernels
