// A fixed number of blocks go through the rows. A thread widens each element once: it keeps a row's
// normalised x and dy * gain as f32, beside its sums over rows, which it writes at its end. As soon
// as the gradient of a pack is stored, that pack of the next row is read.
//
// Two blocks of eight warps with 16 elements a thread (at most 128 registers) fit a multiprocessor,
// or two of six warps with 24 (168 registers), or one of sixteen warps. With 24 elements of 16
// bits, as in rows of 768, a row with dx_beta and a mean takes a warp 610 instructions.
#include "layers/norm/norm_rows.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;  // of norm_backward_any_kernel

// Means over one row: `plain` of g = dy * gain, `along` of g * normalised x. `plain` is zero for
// RMSNorm.
struct RowMeans {
  float plain, along;
};

// The gradient of one element of x.
__device__ float row_gradient(float g, float normal, float rstd, RowMeans means) {
  return rstd * (g - means.plain - normal * means.along);
}

// The blocks that must fit a multiprocessor's registers.
template <class Layout>
inline constexpr int kBlocksAtOnce = Layout::kThreads <= 256 ? 2 : 1;

// Adds the sums of the block's rows in order and writes the result to partial [width].
template <class Layout, int kElements>
__device__ void store_block_sums(const Layout& layout, const float (&sums)[kElements],
                                 Global<float> partial, int width) {
  constexpr int kP = kPack<typename Layout::Element>;
  if constexpr (Layout::kRows == 1) {
    layout.for_each_pack(width, [&](int v, int column) {
      float values[kP];
#pragma unroll
      for (int j = 0; j < kP; ++j) {
        values[j] = sums[v * kP + j];
      }
      store_pack(partial, column, values);
    });
  } else {
    struct Sums {
      float of[kElements][Layout::kLanes];
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
      partial.store(column,
                    block.of[pack / Layout::kLanes * kP + column % kP][pack % Layout::kLanes]);
    }
    __syncthreads();  // `block` may be used again
  }
}

template <class Layout, bool kCentered, class T = Layout::Element>
__global__ void __launch_bounds__(Layout::kThreads, kBlocksAtOnce<Layout>)
    norm_backward_kernel(Global<const T> dy, Global<const T> x, Global<const T> gain,
                         Global<const float> mean, Global<const float> rstd, Global<T> dx,
                         float dx_beta, Global<float> gain_sums, Global<float> bias_sums,
                         Global<float> dx_sums, int64_t rows, int width, float share) {
  constexpr int kP = kPack<T>, kElements = Layout::kElements;
  const Layout layout;
  const Pack<T>* const gains = layout.shared_parameter(gain, width);
  typename Layout::Row of_dy, of_x, of_dx;
  float center, factor;
  // Past the last row and column there are zeros.
  const auto read_pack = [&](int64_t row, int v) {
    of_dy[v] = of_x[v] = of_dx[v] = {};
    if (row < rows && layout.column(v) < width) {
      const int64_t i = row * width + layout.column(v);
      of_dy[v] = dy.load16(i);
      of_x[v] = x.load16(i);
      if (dx_beta != 0) {
        of_dx[v] = dx.load16(i);
      }
    }
  };
  // Past the last row they are those of the last row.
  const auto read_numbers = [&](int64_t row) {
    const int64_t i = std::min(row, rows - 1);
    center = kCentered ? mean.load(i) : 0;
    factor = rstd.load(i);
  };
  float gain_sum[kElements] = {}, dx_sum[kElements] = {};
  float bias_sum[kCentered ? kElements : 1] = {};
  int64_t first = int64_t{blockIdx.x} * Layout::kRows;
#pragma unroll
  for (int v = 0; v < Layout::kPacks; ++v) {
    read_pack(first + layout.row, v);
  }
  read_numbers(first + layout.row);
  for (int step = 0; first < rows; ++step) {
    const int64_t row = first + layout.row;
    float means[2] = {}, normal[kElements], g[kElements];
#pragma unroll
    for (int v = 0; v < Layout::kPacks; ++v) {
      const PackedWords<T> of_gain = gains[layout.column(v) / kP];
#pragma unroll
      for (int j = 0; j < kP; ++j) {
        const int i = v * kP + j;
        const float d = of_dy[v][j];
        g[i] = d * of_gain[j];
        normal[i] = (of_x[v][j] - center) * factor;
        means[1] += g[i] * normal[i];
        gain_sum[i] += d * normal[i];
        if constexpr (kCentered) {
          means[0] += g[i];
          bias_sum[i] += d;
        }
      }
    }
    if (dx) {
      layout.row_sums(means, step);
    }
    const RowMeans of_row{means[0] * share, means[1] * share};
    first += int64_t{gridDim.x} * Layout::kRows;
#pragma unroll
    for (int v = 0; v < Layout::kPacks; ++v) {
      if (dx && row < rows) {
        float gradient[kP];
#pragma unroll
        for (int j = 0; j < kP; ++j) {
          const int i = v * kP + j;
          gradient[j] = dx_beta * of_dx[v][j] + row_gradient(g[i], normal[i], factor, of_row);
        }
        const PackedWords<T> result = rounded_pack<T>(gradient);
#pragma unroll
        for (int j = 0; j < kP; ++j) {
          dx_sum[v * kP + j] += result[j];
        }
        if (layout.column(v) < width) {
          dx.store16(row * width + layout.column(v), result);
        }
      }
      read_pack(first + layout.row, v);
    }
    read_numbers(first + layout.row);
  }
  const int64_t place = int64_t{blockIdx.x} * width;
  store_block_sums(layout, gain_sum, gain_sums + place, width);
  if constexpr (kCentered) {
    store_block_sums(layout, bias_sum, bias_sums + place, width);
  }
  if (dx_sums) {
    store_block_sums(layout, dx_sum, dx_sums + place, width);
  }
}

// norm_backward_kernel for every width: a block reads each of its rows twice, and each thread keeps
// the sums of its columns in the memory of the results.
template <class T>
__global__ void __launch_bounds__(kThreads)
    norm_backward_any_kernel(Global<const T> dy, Global<const T> x, Global<const T> gain,
                             Global<const float> mean, Global<const float> rstd, Global<T> dx,
                             float dx_beta, Global<float> gain_sums, Global<float> bias_sums,
                             Global<float> dx_sums, int64_t rows, int64_t width) {
  const int64_t place = blockIdx.x * width;
  const float count = static_cast<float>(width);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t first = row * width;
    const auto add = [&](Global<float> sums, int64_t j, float term) {
      sums.store(place + j, term + (row == blockIdx.x ? 0 : sums.load(place + j)));
    };
    const float center = mean ? mean.load(row) : 0, factor = rstd.load(row);
    float plain = 0, along = 0;
    for (int64_t j = threadIdx.x; j < width; j += kThreads) {
      const float d = float(dy.load(first + j)), g = d * float(gain.load(j));
      const float normal = (float(x.load(first + j)) - center) * factor;
      plain += g;
      along += g * normal;
      add(gain_sums, j, d * normal);
      if (mean) {
        add(bias_sums, j, d);
      }
    }
    if (!dx) {
      continue;
    }
    const RowMeans means{mean ? block_sum(plain) / count : 0, block_sum(along) / count};
    for (int64_t j = threadIdx.x; j < width; j += kThreads) {
      const float normal = (float(x.load(first + j)) - center) * factor;
      const float g = float(dy.load(first + j)) * float(gain.load(j));
      const float old = dx_beta == 0 ? 0 : float(dx.load(first + j));
      const T result = T(dx_beta * old + row_gradient(g, normal, factor, means));
      dx.store(first + j, result);
      if (dx_sums) {
        add(dx_sums, j, float(result));
      }
    }
  }
}

}  // namespace

template <class T>
void norm_backward(Cuda device, const T* dy, const T* x, const T* gain, const Wide<T>* mean,
                   const Wide<T>* rstd, T* dx, Wide<T> dx_beta, NormSums<Wide<T>> sums,
                   int64_t rows, int64_t width) {
  if (rows == 0) {
    return;
  }
  const auto blocks = static_cast<unsigned>(norm_chunks(device, rows));
  const auto in_registers = [&]<class Layout>() {
    const auto run = [&]<bool kCentered>() {
      launch<norm_backward_kernel<Layout, kCentered>>(
          device, blocks, Layout::kThreads, 0, dy, x, gain, mean, rstd, dx, dx_beta, sums.gain,
          sums.bias, sums.dx, rows, static_cast<int>(width), 1 / static_cast<float>(width));
    };
    mean ? run.template operator()<true>() : run.template operator()<false>();
  };
  // A thread has registers for more elements of 16 bits than of 32.
  constexpr bool kNarrow = sizeof(T) == 2;
  constexpr int kMiddle = kNarrow ? 24 : 16, kMiddleWarps = kNarrow ? 6 : 8;
  if (!with_layout<T, RowLayout<T, 1, 8>, RowLayout<T, 1, 16>,
                   RowLayout<T, 1, kMiddle, kMiddleWarps>, RowLayout<T, 2, 16>,
                   RowLayout<T, 2, kMiddle, kMiddleWarps>, RowLayout<T, 4, 16>, RowLayout<T, 8, 16>,
                   RowLayout<T, 16, 16>>(width, in_registers, dy, x, gain, dx, sums.gain, sums.bias,
                                         sums.dx)) {
    launch<norm_backward_any_kernel<T>>(device, blocks, kThreads, 0, dy, x, gain, mean, rstd, dx,
                                        dx_beta, sums.gain, sums.bias, sums.dx, rows, width);
  }
}

#define TANDEM_NORM(T)                                                                           \
  template void norm_backward<T>(Cuda, const T*, const T*, const T*, const float*, const float*, \
                                 T*, float, NormSums<float>, int64_t, int64_t);
TANDEM_FOR_GPU(TANDEM_NORM)

}  // namespace tandem::kernels
