// A row of up to 8192 elements is held in the registers of a warp or of a block, so that each
// operand is read once. Kernels named _any handle longer rows, and rows that are not whole 16-byte
// packs: they read the operands several times.
#include <cmath>

#include "layers/norm/norm_rows.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;  // of norm_forward_any_kernel

// The sum over the threads of one row.
template <class Layout>
__device__ float row_sum(float value) {
  if constexpr (Layout::kWarps == 1) {
    return warp_sum(value);
  } else {
    return block_sum(value);
  }
}

template <class Layout, class T = Layout::Element>
__global__ void __launch_bounds__(Layout::kThreads)
    norm_forward_kernel(Global<const T> x, Global<const T> branch, Global<const T> gain,
                        Global<const T> bias, Global<T> sum, Global<T> y, Global<float> mean,
                        Global<float> rstd, float epsilon, int64_t rows, int width) {
  constexpr int kP = kPack<T>;
  const Layout layout;
  const int64_t row = int64_t{blockIdx.x} * Layout::kRows + layout.row;
  if (row >= rows) {
    return;  // a whole warp returns; a block that shares a row always has one
  }
  const int64_t first = row * width;
  const float count = static_cast<float>(width);
  float values[Layout::kElements];
  float total = 0;
  layout.for_each_pack(width, [&](int v, int column) {
    Pack<T> pack = x.load16(first + column);
    if (branch) {
      const Pack<T> other = branch.load16(first + column);
#pragma unroll
      for (int j = 0; j < kP; ++j) {
        pack[j] = T(float(pack[j]) + float(other[j]));
      }
      sum.store16(first + column, pack);
    }
#pragma unroll
    for (int j = 0; j < kP; ++j) {
      values[v * kP + j] = float(pack[j]);
      total += float(pack[j]);
    }
  });
  const float center = mean ? row_sum<Layout>(total) / count : 0;
  total = 0;
  layout.for_each_pack(width, [&](int v, int) {
#pragma unroll
    for (int j = 0; j < kP; ++j) {
      const float deviation = values[v * kP + j] - center;
      total += deviation * deviation;
    }
  });
  const float factor = 1 / std::sqrt(row_sum<Layout>(total) / count + epsilon);
  if (layout.lane == 0) {
    rstd.store(row, factor);
    if (mean) {
      mean.store(row, center);
    }
  }
  layout.for_each_pack(width, [&](int v, int column) {
    const Pack<T> gains = gain.load16(column);
    const Pack<T> biases = bias ? bias.load16(column) : Pack<T>{};
    Pack<T> result;
#pragma unroll
    for (int j = 0; j < kP; ++j) {
      const float normal = (values[v * kP + j] - center) * factor;
      result[j] = T(normal * float(gains[j]) + float(biases[j]));
    }
    y.store16(first + column, result);
  });
}

// norm_forward_kernel for every width: a block reads its row three times.
template <class T>
__global__ void __launch_bounds__(kThreads)
    norm_forward_any_kernel(Global<const T> x, Global<const T> branch, Global<const T> gain,
                            Global<const T> bias, Global<T> sum, Global<T> y, Global<float> mean,
                            Global<float> rstd, float epsilon, int64_t width) {
  const int64_t row = blockIdx.x, first = row * width;
  const float count = static_cast<float>(width);
  const Global<const T> from = branch ? Global<const T>(sum) : x;
  float total = 0;
  for (int64_t j = threadIdx.x; j < width; j += kThreads) {
    T value = x.load(first + j);
    if (branch) {
      value = T(float(value) + float(branch.load(first + j)));
      sum.store(first + j, value);
    }
    total += float(value);
  }
  const float center = mean ? block_sum(total) / count : 0;
  total = 0;
  for (int64_t j = threadIdx.x; j < width; j += kThreads) {
    const float deviation = float(from.load(first + j)) - center;
    total += deviation * deviation;
  }
  const float factor = 1 / std::sqrt(block_sum(total) / count + epsilon);
  if (threadIdx.x == 0) {
    rstd.store(row, factor);
    if (mean) {
      mean.store(row, center);
    }
  }
  for (int64_t j = threadIdx.x; j < width; j += kThreads) {
    const float normal = (float(from.load(first + j)) - center) * factor;
    const float shift = bias ? float(bias.load(j)) : 0;
    y.store(first + j, T(normal * float(gain.load(j)) + shift));
  }
}

}  // namespace

template <class T>
void norm_forward(Cuda device, const T* x, const T* branch, const T* gain, const T* bias, T* sum,
                  T* y, Wide<T>* mean, Wide<T>* rstd, Wide<T> epsilon, int64_t rows,
                  int64_t width) {
  if (rows == 0) {
    return;
  }
  const auto in_registers = [&]<class Layout>() {
    launch<norm_forward_kernel<Layout>>(device, blocks_for(rows, Layout::kRows), Layout::kThreads,
                                        0, x, branch, gain, bias, sum, y, mean, rstd, epsilon, rows,
                                        static_cast<int>(width));
  };
  if (!with_layout<T, RowLayout<T, 1, 8>, RowLayout<T, 1, 16>, RowLayout<T, 1, 32>,
                   RowLayout<T, 8, 8>, RowLayout<T, 8, 16>, RowLayout<T, 8, 32>>(
          width, in_registers, x, branch, gain, bias, sum, y)) {
    launch<norm_forward_any_kernel<T>>(device, blocks_for(rows, 1), kThreads, 0, x, branch, gain,
                                       bias, sum, y, mean, rstd, epsilon, width);
  }
}

template void norm_forward<float>(Cuda, const float*, const float*, const float*, const float*,
                                  float*, float*, float*, float*, float, int64_t, int64_t);
template void norm_forward<Bf16>(Cuda, const Bf16*, const Bf16*, const Bf16*, const Bf16*, Bf16*,
                                 Bf16*, float*, float*, float, int64_t, int64_t);
template void norm_forward<Fp16>(Cuda, const Fp16*, const Fp16*, const Fp16*, const Fp16*, Fp16*,
                                 Fp16*, float*, float*, float, int64_t, int64_t);

}  // namespace tandem::kernels
