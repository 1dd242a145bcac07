// Each thread has a pack of neighbouring channels, or a single channel, and walks over rows
// (ColumnGrid). So it loads the values of its channels once.
#include <cmath>

#include "layers/batchnorm2d/batchnorm2d.h"
#include "src/kernels/column_sums.cuh"
#include "src/kernels/pack.cuh"

namespace tandem::kernels {

namespace {

// --- Statistics ---

// The moments of kC channels: their means, their sums of squared deviations, and the number of
// rows. Combines two sets of moments (Chan, Golub and LeVeque 1979).
template <int kC>
struct JoinMoments {
  __device__ void operator()(float (&mine)[2 * kC + 1], const float (&other)[2 * kC + 1]) const {
    const float more = other[2 * kC], number = mine[2 * kC] + more;
    if (more == 0) {
      return;
    }
    const float weight = more / number;
#pragma unroll
    for (int j = 0; j < kC; ++j) {
      const float distance = other[j] - mine[j];
      mine[kC + j] += other[kC + j] + distance * distance * weight * mine[2 * kC];
      mine[j] += distance * weight;
    }
    mine[2 * kC] = number;
  }
};

// partial [chunks, 2, channels]: the means of the chunk's rows, and the sums of squared deviations
// from them. A thread first subtracts its first row's value from all rows. So even with a large
// mean, cancellation costs at most a factor of n in precision, for n rows.
template <class T, int kC>
__global__ void __launch_bounds__(ColumnGrid::kThreads)
    batchnorm2d_moments_kernel(ColumnGrid grid, Global<const T> x, Global<float> partial) {
  const ColumnWalk walk(grid, kC);
  const bool used = walk.column < grid.columns;
  float shift[kC] = {}, sum[kC] = {}, square[kC] = {}, number = 0;
  for (int64_t row = walk.first; used && row < walk.last; row += walk.step) {
    float values[kC];
    load_pack(x, row * grid.columns + walk.column, values);
#pragma unroll
    for (int j = 0; j < kC; ++j) {
      shift[j] = number == 0 ? values[j] : shift[j];
      const float d = values[j] - shift[j];
      sum[j] += d;
      square[j] += d * d;
    }
    ++number;
  }
  float moments[2 * kC + 1];
  moments[2 * kC] = number;
#pragma unroll
  for (int j = 0; j < kC; ++j) {
    const float mean = number == 0 ? 0 : sum[j] / number;
    moments[j] = shift[j] + mean;
    moments[kC + j] = square[j] - sum[j] * mean;
  }
  combine_rows(moments, JoinMoments<kC>{});
  if (used && threadIdx.y == 0) {
    const Global<float> to = partial + int64_t{blockIdx.y} * 2 * grid.columns + walk.column;
#pragma unroll
    for (int j = 0; j < kC; ++j) {
      to.store(j, moments[j]);
      to.store(grid.columns + j, moments[kC + j]);
    }
  }
}

// Combines the chunks' moments, in f64.
__global__ void __launch_bounds__(kTotalThreads)
    batchnorm2d_statistics_kernel(ColumnGrid grid, Global<const float> partial, Global<float> mean,
                                  Global<float> rstd, Global<float> observed) {
  const int64_t channel = int64_t{blockIdx.x} * kWarp + threadIdx.x % kWarp;
  const bool used = channel < grid.columns;
  const int64_t chunks = used ? grid.chunks : 0;
  const double rows = static_cast<double>(grid.rows);
  const double average = column_total(chunks, [&](int64_t chunk) {
    const double weight = static_cast<double>(grid.rows_of(chunk)) / rows;
    return weight * partial.load(2 * chunk * grid.columns + channel);
  });
  const double deviation = column_total(chunks, [&](int64_t chunk) {
    const Global<const float> moments = partial + 2 * chunk * grid.columns + channel;
    const double distance = moments.load(0) - average;
    return moments.load(grid.columns) +
           static_cast<double>(grid.rows_of(chunk)) * distance * distance;
  });
  if (!used || threadIdx.x >= kWarp) {
    return;
  }
  mean.store(channel, static_cast<float>(average));
  rstd.store(channel, static_cast<float>(1 / std::sqrt(deviation / rows + kBatchNormEpsilon)));
  if (observed) {
    const float variance = static_cast<float>(deviation / (rows - 1));
    observed.store(channel, observed.load(channel) + static_cast<float>(average));
    observed.store(grid.columns + channel, observed.load(grid.columns + channel) + variance);
  }
}

__global__ void batchnorm2d_running_kernel(Global<const float> running, Global<float> mean,
                                           Global<float> rstd, int64_t channels) {
  const int64_t c = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c < channels) {
    mean.store(c, running.load(c));
    rstd.store(c,
               static_cast<float>(1 / std::sqrt(running.load(channels + c) + kBatchNormEpsilon)));
  }
}

// --- Normalisation ---

// The coefficients of a thread's channels: normalised = (x - mean) * scale + bias.
template <int kC>
struct Affine {
  float mean[kC], rstd[kC], scale[kC], bias[kC];

  template <class T>
  __device__ Affine(Global<const float> mean_of, Global<const float> rstd_of, Global<const T> gain,
                    Global<const T> bias_of, int64_t channel) {
#pragma unroll
    for (int j = 0; j < kC; ++j) {
      mean[j] = mean_of.load(channel + j);
      rstd[j] = rstd_of.load(channel + j);
      scale[j] = float(gain.load(channel + j)) * rstd[j];
      bias[j] = float(bias_of.load(channel + j));
    }
  }
  __device__ float operator()(float x, int j) const { return (x - mean[j]) * scale[j] + bias[j]; }
};

template <class T, int kC>
__global__ void __launch_bounds__(ColumnGrid::kThreads)
    batchnorm2d_normalize_kernel(ColumnGrid grid, Global<const T> x, Global<const T> residual,
                                 Global<const float> mean, Global<const float> rstd,
                                 Global<const T> gain, Global<const T> bias, bool relu,
                                 Global<T> y) {
  const ColumnWalk walk(grid, kC);
  if (walk.column >= grid.columns) {
    return;
  }
  const Affine<kC> affine(mean, rstd, gain, bias, walk.column);
  for (int64_t row = walk.first; row < walk.last; row += walk.step) {
    const int64_t at = row * grid.columns + walk.column;
    float values[kC], added[kC] = {};
    load_pack(x, at, values);
    if (residual) {
      load_pack(residual, at, added);
    }
#pragma unroll
    for (int j = 0; j < kC; ++j) {
      const float value = affine(values[j], j) + added[j];
      values[j] = relu && value < 0 ? 0 : value;  // passes NaN on
    }
    store_pack(y, at, values);
  }
}

// --- Backward ---

// partial [chunks, 2, channels]: sums over the chunk's rows of g, and of g * (x - mean) * rstd.
template <class T, int kC>
__global__ void __launch_bounds__(ColumnGrid::kThreads)
    batchnorm2d_backward_sums_kernel(ColumnGrid grid, Global<const T> dy, Global<const T> x,
                                     Global<const T> y, ReluMask mask, Global<const float> mean,
                                     Global<const float> rstd, Global<const T> gain,
                                     Global<const T> bias, Global<T> g, Global<float> partial) {
  const ColumnWalk walk(grid, kC);
  const bool used = walk.column < grid.columns;
  const Affine<kC> affine(mean, rstd, gain, bias, used ? walk.column : 0);
  float sums[2 * kC] = {};
  for (int64_t row = walk.first; used && row < walk.last; row += walk.step) {
    const int64_t at = row * grid.columns + walk.column;
    float gradient[kC], input[kC], output[kC] = {};
    load_pack(dy, at, gradient);
    load_pack(x, at, input);
    if (mask == ReluMask::kFromOutput) {
      load_pack(y, at, output);
    }
#pragma unroll
    for (int j = 0; j < kC; ++j) {
      const float sign = mask == ReluMask::kFromOutput ? output[j] : affine(input[j], j);
      gradient[j] = mask == ReluMask::kNone || sign > 0 ? gradient[j] : 0;
      sums[j] += gradient[j];
      sums[kC + j] += gradient[j] * (input[j] - affine.mean[j]);
    }
    if (g) {
      store_pack(g, at, gradient);
    }
  }
  combine_rows(sums, AddAll{});
  if (used && threadIdx.y == 0) {
    const Global<float> to = partial + int64_t{blockIdx.y} * 2 * grid.columns + walk.column;
#pragma unroll
    for (int j = 0; j < kC; ++j) {
      to.store(j, sums[j]);
      to.store(grid.columns + j, sums[kC + j] * affine.rstd[j]);
    }
  }
}

template <class T, int kC>
__global__ void __launch_bounds__(ColumnGrid::kThreads)
    batchnorm2d_backward_data_kernel(ColumnGrid grid, Global<const T> dy, Global<const T> x,
                                     bool masked, Global<const float> mean,
                                     Global<const float> rstd, Global<const T> gain,
                                     Global<const T> bias, Global<const float> sums, Global<T> dx,
                                     float beta) {
  const ColumnWalk walk(grid, kC);
  if (walk.column >= grid.columns) {
    return;
  }
  const Affine<kC> affine(mean, rstd, gain, bias, walk.column);
  // dx = scale * g - (slope * (x - mean) + constant)
  float slope[kC], constant[kC];
#pragma unroll
  for (int j = 0; j < kC; ++j) {
    const float factor = affine.scale[j] / static_cast<float>(grid.rows);
    constant[j] = factor * sums.load(walk.column + j);
    slope[j] = factor * sums.load(grid.columns + walk.column + j) * affine.rstd[j];
  }
  for (int64_t row = walk.first; row < walk.last; row += walk.step) {
    const int64_t at = row * grid.columns + walk.column;
    float gradient[kC], input[kC], old[kC] = {};
    load_pack(dy, at, gradient);
    load_pack(x, at, input);
    if (beta != 0) {
      load_pack(dx, at, old);
    }
#pragma unroll
    for (int j = 0; j < kC; ++j) {
      const float g = !masked || affine(input[j], j) > 0 ? gradient[j] : 0;
      gradient[j] = affine.scale[j] * g - (slope[j] * (input[j] - affine.mean[j]) + constant[j]) +
                    beta * old[j];
    }
    store_pack(dx, at, gradient);
  }
}

}  // namespace

template <class T>
void batchnorm2d_statistics(Cuda device, const T* x, Wide<T>* mean, Wide<T>* rstd, float* observed,
                            int64_t rows, int64_t channels, Wide<T>* workspace) {
  const ColumnGrid grid(rows, channels);
  with_pack<T>(packs_fit(channels, x), [&]<int kC>() {
    launch<batchnorm2d_moments_kernel<T, kC>>(device, grid.grid(kC), grid.block(kC), 0, grid, x,
                                              workspace);
  });
  launch<batchnorm2d_statistics_kernel>(device, blocks_for(channels, kWarp), kTotalThreads, 0, grid,
                                        workspace, mean, rstd, observed);
}

template <class W>
void batchnorm2d_running(Cuda device, const float* running, W* mean, W* rstd, int64_t channels) {
  constexpr int kThreads = 256;
  launch<batchnorm2d_running_kernel>(device, blocks_for(channels, kThreads), kThreads, 0, running,
                                     mean, rstd, channels);
}

template <class T>
void batchnorm2d_normalize(Cuda device, const BatchChannels<T>& of, const T* x, const T* residual,
                           bool relu, T* y) {
  const ColumnGrid grid(of.rows, of.channels);
  with_pack<T>(packs_fit(of.channels, x, residual, y), [&]<int kC>() {
    launch<batchnorm2d_normalize_kernel<T, kC>>(device, grid.grid(kC), grid.block(kC), 0, grid, x,
                                                residual, of.mean, of.rstd, of.gain, of.bias, relu,
                                                y);
  });
}

template <class T>
void batchnorm2d_backward_sums(Cuda device, const BatchChannels<T>& of, const T* dy, const T* x,
                               const T* y, ReluMask mask, T* g, Wide<T>* sums, Wide<T>* workspace) {
  const ColumnGrid grid(of.rows, of.channels);
  with_pack<T>(packs_fit(of.channels, dy, x, y, g), [&]<int kC>() {
    launch<batchnorm2d_backward_sums_kernel<T, kC>>(device, grid.grid(kC), grid.block(kC), 0, grid,
                                                    dy, x, y, mask, of.mean, of.rstd, of.gain,
                                                    of.bias, g, workspace);
  });
  const PartialRows<float> all{workspace, sums, grid.chunks, 2 * of.channels, 0};
  add_partial_rows<float>(device, {&all, 1});
}

template <class T>
void batchnorm2d_backward_data(Cuda device, const BatchChannels<T>& of, const T* dy, const T* x,
                               ReluMask mask, const Wide<T>* sums, T* dx, Wide<T> beta) {
  const ColumnGrid grid(of.rows, of.channels);
  with_pack<T>(packs_fit(of.channels, dy, x, dx), [&]<int kC>() {
    launch<batchnorm2d_backward_data_kernel<T, kC>>(device, grid.grid(kC), grid.block(kC), 0, grid,
                                                    dy, x, mask == ReluMask::kFromInput, of.mean,
                                                    of.rstd, of.gain, of.bias, sums, dx, beta);
  });
}

template void batchnorm2d_running<float>(Cuda, const float*, float*, float*, int64_t);
#define TANDEM_BATCHNORM2D(T)                                                                     \
  template void batchnorm2d_statistics<T>(Cuda, const T*, float*, float*, float*, int64_t,        \
                                          int64_t, float*);                                       \
  template void batchnorm2d_normalize<T>(Cuda, const BatchChannels<T>&, const T*, const T*, bool, \
                                         T*);                                                     \
  template void batchnorm2d_backward_sums<T>(Cuda, const BatchChannels<T>&, const T*, const T*,   \
                                             const T*, ReluMask, T*, float*, float*);             \
  template void batchnorm2d_backward_data<T>(Cuda, const BatchChannels<T>&, const T*, const T*,   \
                                             ReluMask, const float*, T*, float);
TANDEM_FOR_GPU(TANDEM_BATCHNORM2D)

}  // namespace tandem::kernels
