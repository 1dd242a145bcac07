// A fixed number of blocks go through the rows. While a row's gradient is computed, the next row is
// read. Each block keeps its sums over rows in registers, and writes them at its end.
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

// A block of 512 threads has registers neither for the next row nor for the gain.
template <class Layout>
inline constexpr bool kHasRoom = Layout::kThreads <= 256;

// What backward reads of a row. Past the last row all is zero.
template <class Layout>
struct RowInput {
  typename Layout::Row dy{}, x{}, old{};
  float center = 0, rstd = 0;
};

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
__global__ void __launch_bounds__(Layout::kThreads)
    norm_backward_kernel(Global<const T> dy, Global<const T> x, Global<const T> gain,
                         Global<const float> mean, Global<const float> rstd, Global<T> dx,
                         float dx_beta, Global<float> gain_sums, Global<float> bias_sums,
                         Global<float> dx_sums, int64_t rows, int width) {
  constexpr int kP = kPack<T>, kElements = Layout::kElements;
  const Layout layout;
  const auto read = [&](int64_t row) {
    RowInput<Layout> input;
    if (row < rows) {
      layout.load(dy, row * width, width, input.dy);
      layout.load(x, row * width, width, input.x);
      if (dx_beta != 0) {
        layout.load(dx, row * width, width, input.old);
      }
      input.center = kCentered ? mean.load(row) : 0;
      input.rstd = rstd.load(row);
    }
    return input;
  };
  const float share = 1 / static_cast<float>(width);
  typename Layout::Row gains;
  if constexpr (kHasRoom<Layout>) {
    layout.load_parameter(gain, width, gains);
  }
  const auto gain_of = [&](int v, int column) {
    if constexpr (kHasRoom<Layout>) {
      return gains[v];
    } else {
      return gain.load16(column);
    }
  };
  float gain_sum[kElements] = {}, dx_sum[kElements] = {};
  float bias_sum[kCentered ? kElements : 1] = {};
  const int64_t stride = int64_t{gridDim.x} * Layout::kRows;
  int64_t row = int64_t{blockIdx.x} * Layout::kRows + layout.row;
  RowInput<Layout> input = read(row);
  int step = 0;
  for (int64_t first = int64_t{blockIdx.x} * Layout::kRows; first < rows; first += stride, ++step) {
    RowInput<Layout> next;
    if constexpr (kHasRoom<Layout>) {
      next = read(row + stride);
    }
    float means[2] = {};
    layout.for_each_pack(width, [&](int v, int column) {
      const Pack<T> of_gain = gain_of(v, column);
#pragma unroll
      for (int j = 0; j < kP; ++j) {
        const float d = float(input.dy[v][j]), g = d * float(of_gain[j]);
        const float normal = (float(input.x[v][j]) - input.center) * input.rstd;
        means[1] += g * normal;
        gain_sum[v * kP + j] += d * normal;
        if constexpr (kCentered) {
          means[0] += g;
          bias_sum[v * kP + j] += d;
        }
      }
    });
    if (dx) {
      layout.row_sums(means, step);
      const RowMeans of_row{means[0] * share, means[1] * share};
      layout.for_each_pack(width, [&](int v, int column) {
        const Pack<T> of_gain = gain_of(v, column);
        float gradient[kP];
#pragma unroll
        for (int j = 0; j < kP; ++j) {
          const float normal = (float(input.x[v][j]) - input.center) * input.rstd;
          const float g = float(input.dy[v][j]) * float(of_gain[j]);
          gradient[j] =
              dx_beta * float(input.old[v][j]) + row_gradient(g, normal, input.rstd, of_row);
        }
        const Pack<T> result = rounded_pack<T>(gradient);
#pragma unroll
        for (int j = 0; j < kP; ++j) {
          dx_sum[v * kP + j] += float(result[j]);
        }
        if (row < rows) {
          dx.store16(row * width + column, result);
        }
      });
    }
    row += stride;
    if constexpr (kHasRoom<Layout>) {
      input = next;
    } else {
      input = read(row);
    }
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
          sums.bias, sums.dx, rows, static_cast<int>(width));
    };
    mean ? run.template operator()<true>() : run.template operator()<false>();
  };
  // A thread has registers for more elements of 16 bits than of 32.
  constexpr int kMiddle = sizeof(T) == 2 ? 24 : 16;
  if (!with_layout<T, RowLayout<T, 1, 8>, RowLayout<T, 1, 16>, RowLayout<T, 1, kMiddle>,
                   RowLayout<T, 2, 16>, RowLayout<T, 2, kMiddle>, RowLayout<T, 4, 16>,
                   RowLayout<T, 8, 16>, RowLayout<T, 16, 16>>(width, in_registers, dy, x, gain, dx,
                                                              sums.gain, sums.bias, sums.dx)) {
    launch<norm_backward_any_kernel<T>>(device, blocks, kThreads, 0, dy, x, gain, mean, rstd, dx,
                                        dx_beta, sums.gain, sums.bias, sums.dx, rows, width);
  }
}

template void norm_backward<float>(Cuda, const float*, const float*, const float*, const float*,
                                   const float*, float*, float, NormSums<float>, int64_t, int64_t);
template void norm_backward<Bf16>(Cuda, const Bf16*, const Bf16*, const Bf16*, const float*,
                                  const float*, Bf16*, float, NormSums<float>, int64_t, int64_t);
template void norm_backward<Fp16>(Cuda, const Fp16*, const Fp16*, const Fp16*, const float*,
                                  const float*, Fp16*, float, NormSums<float>, int64_t, int64_t);

}  // namespace tandem::kernels
