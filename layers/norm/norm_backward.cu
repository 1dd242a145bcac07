// Backward has two stages. First a number of blocks, which depends only on the number of rows,
// computes dx, and each block sums the gradients of gain and bias over its rows. Then a second
// kernel adds the blocks' sums.
#include "layers/norm/norm_rows.cuh"
#include "src/kernels/column_sums.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;  // of norm_backward_any_kernel

// Sums or means over one row: `plain` of g = dy * gain, `along` of g * normalised x. `plain` is
// zero for RMSNorm.
struct RowSums {
  float plain, along;
};

// Sums both over the block's threads, and divides by `count`.
template <int kWarps>
__device__ RowSums block_means(RowSums sums, float count) {
  struct Partial {
    RowSums of_warp[kWarps];
  };
  Partial& partial = shared<Partial>();
  sums = {warp_sum(sums.plain), warp_sum(sums.along)};
  if (threadIdx.x % kWarp == 0) {
    partial.of_warp[threadIdx.x / kWarp] = sums;
  }
  __syncthreads();
  sums = {0, 0};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    sums.plain += partial.of_warp[w].plain;
    sums.along += partial.of_warp[w].along;
  }
  __syncthreads();  // `partial` may be used again
  return {sums.plain / count, sums.along / count};
}

template <class Layout>
__device__ RowSums row_means(RowSums sums, float count) {
  if constexpr (Layout::kWarps > 1) {
    return block_means<Layout::kWarps>(sums, count);
  } else {
    return {warp_sum(sums.plain) / count, warp_sum(sums.along) / count};
  }
}

// The gradient of one element of x.
__device__ float row_gradient(float g, float normal, float rstd, RowSums means) {
  return rstd * (g - means.plain - normal * means.along);
}

// Adds the sums of the block's warps in order and writes the result to partial [2, width].
template <class Layout, int kElements>
__device__ void store_block_sums(const Layout& layout, const float (&sums)[kElements],
                                 Global<float> partial, int width) {
  constexpr int kP = kPack<typename Layout::Element>;
  if constexpr (Layout::kRows == 1) {
    layout.for_each_pack(width, [&](int v, int column) {
#pragma unroll
      for (int j = 0; j < kP; j += kPack<float>) {
        Pack<float> pack;
#pragma unroll
        for (int k = 0; k < kPack<float>; ++k) {
          pack[k] = sums[v * kP + j + k];
        }
        partial.store16(column + j, pack);
      }
    });
  } else {
    struct Sums {
      float of[kElements][kWarp];
    };
    Sums& block = shared<Sums>();
    for (int row = 0; row < Layout::kRows; ++row) {
      if (layout.row == row) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          block.of[i][layout.lane] = sums[i] + (row == 0 ? 0 : block.of[i][layout.lane]);
        }
      }
      __syncthreads();
    }
    for (int column = static_cast<int>(threadIdx.x); column < width; column += Layout::kThreads) {
      const int pack = column / kP;
      partial.store(column, block.of[pack / kWarp * kP + column % kP][pack % kWarp]);
    }
    __syncthreads();  // `block` may be used again
  }
}

template <class Layout, bool kCentered, class T = Layout::Element>
__global__ void __launch_bounds__(Layout::kThreads)
    norm_backward_kernel(Global<const T> dy, Global<const T> x, Global<const T> gain,
                         Global<const float> mean, Global<const float> rstd, Global<T> dx,
                         float dx_beta, Global<float> workspace, int64_t rows, int width) {
  constexpr int kP = kPack<T>, kPacks = Layout::kPacks, kElements = Layout::kElements;
  const Layout layout;
  const float count = static_cast<float>(width);
  float gain_sum[kElements] = {};
  float bias_sum[kCentered ? kElements : 1] = {};
  for (int64_t row = int64_t{blockIdx.x} * Layout::kRows + layout.row; row < rows;
       row += int64_t{gridDim.x} * Layout::kRows) {
    const int64_t first = row * width;
    const float center = kCentered ? mean.load(row) : 0, factor = rstd.load(row);
    Pack<T> output[kPacks], input[kPacks], old[kPacks];
    layout.for_each_pack(width, [&](int v, int column) {
      output[v] = dy.load16(first + column);
      input[v] = x.load16(first + column);
      old[v] = dx_beta == 0 ? Pack<T>{} : dx.load16(first + column);
    });
    float plain = 0, along = 0;
    layout.for_each_pack(width, [&](int v, int column) {
      const Pack<T> gains = gain.load16(column);
#pragma unroll
      for (int j = 0; j < kP; ++j) {
        const float d = float(output[v][j]), g = d * float(gains[j]);
        const float normal = (float(input[v][j]) - center) * factor;
        along += g * normal;
        gain_sum[v * kP + j] += d * normal;
        if constexpr (kCentered) {
          plain += g;
          bias_sum[v * kP + j] += d;
        }
      }
    });
    if (!dx) {
      continue;
    }
    const RowSums means = row_means<Layout>({plain, along}, count);
    layout.for_each_pack(width, [&](int v, int column) {
      const Pack<T> gains = gain.load16(column);
      Pack<T> result;
#pragma unroll
      for (int j = 0; j < kP; ++j) {
        const float normal = (float(input[v][j]) - center) * factor;
        const float g = float(output[v][j]) * float(gains[j]);
        result[j] = T(dx_beta * float(old[v][j]) + row_gradient(g, normal, factor, means));
      }
      dx.store16(first + column, result);
    });
  }
  const Global<float> partial = workspace + int64_t{blockIdx.x} * 2 * width;
  store_block_sums(layout, gain_sum, partial, width);
  if constexpr (kCentered) {
    store_block_sums(layout, bias_sum, partial + width, width);
  }
}

// norm_backward_kernel for every width: a block reads each of its rows twice, and each thread keeps
// the sums of its columns in the workspace.
template <class T>
__global__ void __launch_bounds__(kThreads)
    norm_backward_any_kernel(Global<const T> dy, Global<const T> x, Global<const T> gain,
                             Global<const float> mean, Global<const float> rstd, Global<T> dx,
                             float dx_beta, Global<float> workspace, int64_t rows, int64_t width) {
  const Global<float> gain_sum = workspace + int64_t{blockIdx.x} * 2 * width;
  const Global<float> bias_sum = gain_sum + width;
  const float count = static_cast<float>(width);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t first = row * width;
    const bool again = row != blockIdx.x;
    const float center = mean ? mean.load(row) : 0, factor = rstd.load(row);
    float plain = 0, along = 0;
    for (int64_t j = threadIdx.x; j < width; j += kThreads) {
      const float d = float(dy.load(first + j)), g = d * float(gain.load(j));
      const float normal = (float(x.load(first + j)) - center) * factor;
      plain += g;
      along += g * normal;
      gain_sum.store(j, d * normal + (again ? gain_sum.load(j) : 0));
      bias_sum.store(j, d + (again ? bias_sum.load(j) : 0));
    }
    if (!dx) {
      continue;
    }
    const RowSums means = block_means<kThreads / kWarp>({mean ? plain : 0, along}, count);
    for (int64_t j = threadIdx.x; j < width; j += kThreads) {
      const float normal = (float(x.load(first + j)) - center) * factor;
      const float g = float(dy.load(first + j)) * float(gain.load(j));
      const float old = dx_beta == 0 ? 0 : float(dx.load(first + j));
      dx.store(first + j, T(dx_beta * old + row_gradient(g, normal, factor, means)));
    }
  }
}

// Sums columns [0, width) of workspace [blocks, 2 * width] for dgain, the others for dbias. Either
// may be null.
__global__ void __launch_bounds__(kTotalThreads)
    norm_parameters_kernel(Global<const float> workspace, Global<float> dgain, float dgain_beta,
                           Global<float> dbias, float dbias_beta, int64_t blocks, int64_t width) {
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x % kWarp;
  const bool used = column < width, of_bias = blockIdx.y == 1;
  const Global<float> gradient = of_bias ? dbias : dgain;
  if (!gradient) {
    return;
  }
  const Global<const float> sums = of_bias ? workspace + width : workspace;
  const double total = column_total(
      used ? blocks : 0, [&](int64_t block) { return sums.load(2 * block * width + column); });
  if (used && threadIdx.x < kWarp) {
    const float beta = of_bias ? dbias_beta : dgain_beta;
    gradient.store(column,
                   static_cast<float>(total) + (beta == 0 ? 0 : beta * gradient.load(column)));
  }
}

}  // namespace

template <class T>
void norm_backward(Cuda device, const T* dy, const T* x, const T* gain, const Wide<T>* mean,
                   const Wide<T>* rstd, T* dx, Wide<T> dx_beta, Wide<T>* workspace, int64_t rows,
                   int64_t width) {
  if (rows == 0) {
    return;
  }
  const auto blocks = static_cast<unsigned>(norm_chunks(device, rows));
  const auto in_registers = [&]<class Layout>() {
    const auto run = [&]<bool kCentered>() {
      launch<norm_backward_kernel<Layout, kCentered>>(device, blocks, Layout::kThreads, 0, dy, x,
                                                      gain, mean, rstd, dx, dx_beta, workspace,
                                                      rows, static_cast<int>(width));
    };
    mean ? run.template operator()<true>() : run.template operator()<false>();
  };
  if (!with_layout<T, RowLayout<T, 1, 8>, RowLayout<T, 1, 16>, RowLayout<T, 4, 8>,
                   RowLayout<T, 4, 16>, RowLayout<T, 8, 16>, RowLayout<T, 16, 16>>(
          width, in_registers, dy, x, gain, dx, workspace)) {
    launch<norm_backward_any_kernel<T>>(device, blocks, kThreads, 0, dy, x, gain, mean, rstd, dx,
                                        dx_beta, workspace, rows, width);
  }
}

template <class W>
void norm_backward_parameters(Cuda device, const W* workspace, W* dgain, W dgain_beta, W* dbias,
                              W dbias_beta, int64_t rows, int64_t width) {
  const dim3 grid(blocks_for(width, kWarp), dbias ? 2 : 1);
  launch<norm_parameters_kernel>(device, grid, kTotalThreads, 0, workspace, dgain, dgain_beta,
                                 dbias, dbias_beta, norm_chunks(device, rows), width);
}

template void norm_backward<float>(Cuda, const float*, const float*, const float*, const float*,
                                   const float*, float*, float, float*, int64_t, int64_t);
template void norm_backward<Bf16>(Cuda, const Bf16*, const Bf16*, const Bf16*, const float*,
                                  const float*, Bf16*, float, float*, int64_t, int64_t);
template void norm_backward<Fp16>(Cuda, const Fp16*, const Fp16*, const Fp16*, const float*,
                                  const float*, Fp16*, float, float*, int64_t, int64_t);
template void norm_backward_parameters<float>(Cuda, const float*, float*, float, float*, float,
                                              int64_t, int64_t);

}  // namespace tandem::kernels
