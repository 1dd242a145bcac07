// A row of up to 8192 elements is held in the registers of a warp or of a block, so that each
// operand is read once. While a row is computed, the next one is read. Kernels named _any handle
// longer rows, and rows that are not whole 16-byte packs: they read the operands several times.
#include <cmath>

#include "layers/norm/norm_rows.cuh"

namespace tandem::kernels {

namespace {

constexpr int kThreads = 256;         // of norm_forward_any_kernel
constexpr int64_t kMostBlocks = 528;  // four on each of 132 multiprocessors

template <class Layout>
struct RowAndBranch {
  typename Layout::Row x{}, branch{};
};

template <class Layout, class T = Layout::Element>
__global__ void __launch_bounds__(Layout::kThreads)
    norm_forward_kernel(Global<const T> x, Global<const T> branch, Global<const T> gain,
                        Global<const T> bias, Global<T> sum, Global<T> y, Global<float> mean,
                        Global<float> rstd, float epsilon, int64_t rows, int width) {
  constexpr int kP = kPack<T>;
  const Layout layout;
  const auto read = [&](int64_t row) {
    RowAndBranch<Layout> input;
    if (row < rows) {
      layout.load(x, row * width, width, input.x);
      if (branch) {
        layout.load(branch, row * width, width, input.branch);
      }
    }
    return input;
  };
  const float count = static_cast<float>(width);
  typename Layout::Row gains, biases{};
  layout.load_parameter(gain, width, gains);
  if (bias) {
    layout.load_parameter(bias, width, biases);
  }
  const int64_t stride = int64_t{gridDim.x} * Layout::kRows;
  int64_t row = int64_t{blockIdx.x} * Layout::kRows + layout.row;
  RowAndBranch<Layout> input = read(row);
  int sums = 0;
  for (int64_t first = int64_t{blockIdx.x} * Layout::kRows; first < rows; first += stride) {
    const RowAndBranch<Layout> next = read(row + stride);
    float total[1] = {};
    layout.for_each_pack(width, [&](int v, int column) {
      if (branch) {
        float both[kP];
#pragma unroll
        for (int j = 0; j < kP; ++j) {
          both[j] = float(input.x[v][j]) + float(input.branch[v][j]);
        }
        input.x[v] = rounded_pack<T>(both);
        if (row < rows) {
          sum.store16(row * width + column, input.x[v]);
        }
      }
#pragma unroll
      for (int j = 0; j < kP; ++j) {
        total[0] += float(input.x[v][j]);
      }
    });
    float center = 0;
    if (mean) {
      layout.row_sums(total, sums++);
      center = total[0] / count;
    }
    total[0] = 0;
    layout.for_each_pack(width, [&](int v, int) {
#pragma unroll
      for (int j = 0; j < kP; ++j) {
        const float deviation = float(input.x[v][j]) - center;
        total[0] += deviation * deviation;
      }
    });
    layout.row_sums(total, sums++);
    const float factor = 1 / std::sqrt(total[0] / count + epsilon);
    if (row < rows && layout.lane == 0) {
      rstd.store(row, factor);
      if (mean) {
        mean.store(row, center);
      }
    }
    layout.for_each_pack(width, [&](int v, int column) {
      float result[kP];
#pragma unroll
      for (int j = 0; j < kP; ++j) {
        const float normal = (float(input.x[v][j]) - center) * factor;
        result[j] = normal * float(gains[v][j]) + float(biases[v][j]);
      }
      if (row < rows) {
        store_pack(y, row * width + column, result);
      }
    });
    input = next;
    row += stride;
  }
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
    const auto blocks = std::min<unsigned>(blocks_for(rows, Layout::kRows), kMostBlocks);
    launch<norm_forward_kernel<Layout>>(device, blocks, Layout::kThreads, 0, x, branch, gain, bias,
                                        sum, y, mean, rstd, epsilon, rows, static_cast<int>(width));
  };
  // A thread has registers for more elements of 16 bits than of 32.
  constexpr bool kNarrow = sizeof(T) == 2;
  constexpr int kMiddle = kNarrow ? 24 : 16, kMost = kNarrow ? 32 : 16;
  if (!with_layout<T, RowLayout<T, 1, 8>, RowLayout<T, 1, 16>, RowLayout<T, 1, kMiddle>,
                   RowLayout<T, 1, kMost>, RowLayout<T, 2, kMost>, RowLayout<T, 4, kMost>,
                   RowLayout<T, 8, kMost>, RowLayout<T, 16, 16>>(width, in_registers, x, branch,
                                                                 gain, bias, sum, y)) {
    launch<norm_forward_any_kernel<T>>(device, blocks_for(rows, 1), kThreads, 0, x, branch, gain,
                                       bias, sum, y, mean, rstd, epsilon, width);
  }
}

#define TANDEM_NORM(T)                                                                        \
  template void norm_forward<T>(Cuda, const T*, const T*, const T*, const T*, T*, T*, float*, \
                                float*, float, int64_t, int64_t);
TANDEM_FOR_GPU(TANDEM_NORM)

}  // namespace tandem::kernels
