#include "layers/conv2d/winograd.h"

#include <omp.h>

#include <algorithm>

#include "layers/conv2d/conv2d_plan.h"
#include "layers/conv2d/winograd_transform.h"
#include "src/product/gemm_tile.h"

namespace tandem::kernels {

namespace {

constexpr int kPositions = kSide * kSide;

// Tiles that are computed together: their transformed pixels stay in the cache.
constexpr int64_t kForwardTiles = 2 * kTileRows;
constexpr int64_t kWeightTiles = 64;

// --- sizes ---

// Images cut into tiles, and channels into blocks. Transformed pixels are [positions][blocks][tiles
// of a strip][kTileColumns], the form in which products read them.
template <class T>
struct Tiling {
  Conv2dShape shape;
  int64_t strip_tiles;

  int64_t rows() const { return ceil_divide(shape.out_height(), 2); }
  int64_t columns() const { return ceil_divide(shape.out_width(), 2); }
  int64_t tiles() const { return shape.batch * rows() * columns(); }
  int64_t strips() const { return ceil_divide(tiles(), strip_tiles); }
  int64_t tiles_of(int64_t strip) const {
    return std::min(strip_tiles, tiles() - strip * strip_tiles);
  }
  static int64_t blocks(int64_t channels) { return ceil_divide(channels, kTileColumns<T>); }
  int64_t block_size() const { return strip_tiles * kTileColumns<T>; }
  int64_t transformed(int64_t channels) const {
    return kPositions * blocks(channels) * block_size();
  }
};

// Calls f(tile in the strip, image, first row, first column of its outputs) for tiles of a strip.
template <class T, class F>
void for_each_tile(const Tiling<T>& tiling, int64_t strip, F f) {
  const int64_t first = strip * tiling.strip_tiles;
  for (int64_t i = 0; i < tiling.tiles_of(strip); ++i) {
    const int64_t line = (first + i) / tiling.columns(), column = (first + i) % tiling.columns();
    f(i, line / tiling.rows(), 2 * (line % tiling.rows()), 2 * column);
  }
}

// A window of kSize x kSize pixels of an image [height, width, channels]: the address of each.
// Those outside the image are `zeros`.
template <class T, int kSize>
struct Window {
  const T* pixel[kSize][kSize];

  Window(const T* image, int64_t height, int64_t width, int64_t channels, int64_t row,
         int64_t column, const T* zeros) {
    for (int64_t i = 0; i < kSize; ++i) {
      for (int64_t j = 0; j < kSize; ++j) {
        const int64_t y = row + i, x = column + j;
        const bool inside = y >= 0 && y < height && x >= 0 && x < width;
        pixel[i][j] = inside ? image + (y * width + x) * channels : zeros;
      }
    }
  }
};

// --- transforms ---

// Writes kMatrix applied to a window, for all channels of one tile.
template <auto kMatrix, class T, int kSize>
void transform_window(const Tiling<T>& tiling, const Window<T, kSize>& window, int64_t channels,
                      int64_t tile, T* transformed) {
  const int64_t position_step = Tiling<T>::blocks(channels) * tiling.block_size();
  for (int64_t c = 0; c < channels; c += kLanes<T>) {
    T* const to = transformed + c / kTileColumns<T> * tiling.block_size() + tile * kTileColumns<T> +
                  c % kTileColumns<T>;
    transform<T, kMatrix, kSize, kSide>(
        [&](int row, int column) { return load(window.pixel[row][column] + c); },
        [&](int row, int column, Vector<T> value) {
          store<T>(to + (row * kSide + column) * position_step, value);
        });
  }
}

// B^T d B of the tiles of a strip of x.
template <class T>
void transform_inputs(const Tiling<T>& tiling, int64_t strip, const T* x, const T* zeros,
                      T* transformed) {
  const Conv2dShape& s = tiling.shape;
  for_each_tile(tiling, strip, [&](int64_t tile, int64_t n, int64_t row, int64_t column) {
    const Window<T, kSide> window(x + n * s.height * s.width * s.in_channels, s.height, s.width,
                                  s.in_channels, row - s.padding, column - s.padding, zeros);
    transform_window<b_transposed<T>>(tiling, window, s.in_channels, tile, transformed);
  });
}

// A dy A^T of the tiles of a strip of dy.
template <class T>
void transform_gradients(const Tiling<T>& tiling, int64_t strip, const T* dy, const T* zeros,
                         T* transformed) {
  const Conv2dShape& s = tiling.shape;
  const int64_t height = s.out_height(), width = s.out_width();
  for_each_tile(tiling, strip, [&](int64_t tile, int64_t n, int64_t row, int64_t column) {
    const Window<T, 2> window(dy + n * height * width * s.out_channels, height, width,
                              s.out_channels, row, column, zeros);
    transform_window<a<T>>(tiling, window, s.out_channels, tile, transformed);
  });
}

// y = beta * y + A^T m A for the tiles of a strip; m: [positions][tiles][out channels].
template <class T>
void write_outputs(const Tiling<T>& tiling, int64_t strip, const T* m, T* y, T beta) {
  const Conv2dShape& s = tiling.shape;
  const int64_t height = s.out_height(), width = s.out_width(), channels = s.out_channels;
  for_each_tile(tiling, strip, [&](int64_t tile, int64_t n, int64_t row, int64_t column) {
    T* const corner = y + ((n * height + row) * width + column) * channels;
    const int64_t rows = std::min<int64_t>(2, height - row);
    const int64_t columns = std::min<int64_t>(2, width - column);
    for (int64_t c = 0; c < channels; c += kLanes<T>) {
      const T* const from = m + tile * channels + c;
      transform<T, a_transposed<T>, kSide, 2>(
          [&](int i, int j) {
            return load(from + (i * kSide + j) * tiling.strip_tiles * channels);
          },
          [&](int i, int j, Vector<T> value) {
            if (i < rows && j < columns) {
              T* const to = corner + (i * width + j) * channels + c;
              store<T>(to, beta == T(0) ? value : value + beta * load(to));
            }
          });
    }
  });
}

// --- weights ---

// Panels of transformed weights: [positions][blocks of source channels][blocks of target
// channels][depth][kTileColumns].
template <class T>
struct WeightPanels {
  int64_t in, out;

  int64_t block_size() const {  // of one block of source channels
    return Tiling<T>::blocks(out) * kTileColumns<T> * std::min(in, kTileColumns<T>);
  }
  int64_t offset(int64_t position, int64_t block) const {
    return (position * Tiling<T>::blocks(in) + block) * block_size();
  }
  int64_t size() const { return offset(kPositions, 0); }
};

// Transforms w [rows, 3, 3, columns] into u [positions][rows][columns]: G w G^T.
template <class T>
void transform_weights(int64_t rows, int64_t columns, const T* w, T* u) {
#pragma omp parallel for schedule(static) num_threads(cpu_threads())
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; c += kLanes<T>) {
      const T* const from = w + row * 9 * columns + c;
      T* const to = u + row * columns + c;
      transform<T, g<T>, 3, kSide>([&](int i, int j) { return load(from + (i * 3 + j) * columns); },
                                   [&](int i, int j, Vector<T> value) {
                                     store<T>(to + (i * kSide + j) * rows * columns, value);
                                   });
    }
  }
}

// Packs transformed weights u. Turned weights are transposed, and since
// G (w2, w1, w0) = (u3, u1, u2, u0), the first and last position of each axis change places.
template <class T>
void pack_weights(const WeightPanels<T>& panels, bool turned, const T* u, T* packed) {
  constexpr int kTurned[kSide] = {3, 1, 2, 0};
#pragma omp parallel for schedule(static) num_threads(cpu_threads())
  for (int position = 0; position < kPositions; ++position) {
    const int i = position / kSide, j = position % kSide;
    const int source = turned ? kTurned[i] * kSide + kTurned[j] : position;
    const Operand<T> weights{u + source * panels.in * panels.out, turned ? 1 : panels.in,
                             turned ? panels.out : 1};
    for (int64_t block = 0; block < Tiling<T>::blocks(panels.in); ++block) {
      const int64_t first = block * kTileColumns<T>;
      pack<T, kTileColumns<T>>(weights.from(0, first), panels.out,
                               std::min(kTileColumns<T>, panels.in - first),
                               packed + panels.offset(position, block));
    }
  }
}

// The workspace of a convolution: weights, a pixel of zeros, and each thread's strip.
template <class T>
struct ForwardPlan {
  Tiling<T> tiling;
  WeightPanels<T> panels;

  explicit ForwardPlan(const Conv2dShape& s)
      : tiling{s, kForwardTiles}, panels{s.in_channels, s.out_channels} {}
  int64_t weights() const { return kPositions * panels.in * panels.out; }
  int64_t inputs() const { return tiling.transformed(panels.in); }
  int64_t strip() const { return inputs() + kPositions * tiling.strip_tiles * panels.out; }
  int64_t workspace() const {
    return weights() + panels.size() + panels.in + cpu_threads() * strip();
  }
};

// The transformed outputs of `tiles` tiles: for each position the product of pixels and weights.
template <class T>
void multiply_strip(const ForwardPlan<T>& plan, int64_t tiles, const T* inputs, const T* packed,
                    T* m) {
  const int64_t in = plan.panels.in, out = plan.panels.out;
  const int64_t blocks = Tiling<T>::blocks(in);
  for (int64_t position = 0; position < kPositions;
       ++position, m += plan.tiling.strip_tiles * out) {
    for (int64_t block = 0; block < blocks; ++block, inputs += plan.tiling.block_size()) {
      const int64_t depth = std::min(kTileColumns<T>, in - block * kTileColumns<T>);
      multiply_rows<T>(inputs,
                       {packed + plan.panels.offset(position, block), depth * kTileColumns<T>},
                       tiles, out, depth, {m, out, T(1), T(block == 0 ? 0 : 1)});
    }
  }
}

// The workspace of a weight gradient: partial sums [shares][positions][out][in], a pixel of zeros,
// and each thread's strip.
template <class T>
struct WeightPlan {
  Tiling<T> tiling;
  int64_t in, out, shares;

  explicit WeightPlan(const Conv2dShape& s)
      : tiling{s, kWeightTiles},
        in(s.in_channels),
        out(s.out_channels),
        shares(std::min(kShares, tiling.strips())) {}
  int64_t partial() const { return kPositions * in * out; }
  int64_t inputs() const { return tiling.transformed(in); }
  int64_t strip() const { return inputs() + tiling.transformed(out); }
  int64_t workspace() const {
    return shares * partial() + std::max(in, out) + cpu_threads() * strip();
  }
};

// sum [positions][out][in] += the products of `tiles` tiles.
template <class T>
void correlate_strip(const WeightPlan<T>& plan, int64_t tiles, const T* inputs, const T* gradients,
                     T* sum) {
  const int64_t step = plan.tiling.block_size();
  for (int64_t position = 0; position < kPositions; ++position) {
    for (int64_t row = 0; row < plan.out; row += kTileColumns<T>, gradients += step) {
      const int64_t rows = std::min(kTileColumns<T>, plan.out - row);
      multiply_columns<T>(gradients, {inputs, step}, rows, plan.in, tiles,
                          {sum + row * plan.in, plan.in, T(1), T(1)});
    }
    inputs += Tiling<T>::blocks(plan.in) * step;
    sum += plan.out * plan.in;
  }
}

// dw = beta * dw + G^T (the sum of the shares, in order) G.
template <class T>
void write_weight_gradient(const WeightPlan<T>& plan, const T* partial, T* dw, T beta) {
#pragma omp parallel for schedule(static) num_threads(cpu_threads())
  for (int64_t row = 0; row < plan.out; ++row) {
    for (int64_t c = 0; c < plan.in; c += kLanes<T>) {
      transform<T, g_transposed<T>, kSide, 3>(
          [&](int i, int j) {
            const T* from = partial + ((i * kSide + j) * plan.out + row) * plan.in + c;
            Vector<T> total = {};
            for (int64_t share = 0; share < plan.shares; ++share) {
              total += load(from + share * plan.partial());
            }
            return total;
          },
          [&](int i, int j, Vector<T> value) {
            T* const to = dw + (row * 9 + i * 3 + j) * plan.in + c;
            store<T>(to, beta == T(0) ? value : value + beta * load(to));
          });
    }
  }
}

}  // namespace

bool winograd_pays(const Conv2dShape& s) {
  return s.kernel_h == 3 && s.kernel_w == 3 && s.stride == 1 && s.in_channels % 16 == 0 &&
         s.out_channels % 16 == 0 &&
         kPositions * ceil_divide(s.out_height(), 2) * ceil_divide(s.out_width(), 2) <
             9 * s.out_height() * s.out_width();
}

Conv2dShape winograd_backward_data(const Conv2dShape& s) {
  return {.batch = s.batch,
          .height = s.out_height(),
          .width = s.out_width(),
          .in_channels = s.out_channels,
          .out_channels = s.in_channels,
          .kernel_h = s.kernel_h,
          .kernel_w = s.kernel_w,
          .stride = s.stride,
          .padding = 2 - s.padding};
}

template <class T>
int64_t winograd_workspace(const Conv2dShape& shape) {
  return ForwardPlan<T>(shape).workspace();
}

template <class T>
int64_t winograd_weight_workspace(const Conv2dShape& shape) {
  return WeightPlan<T>(shape).workspace();
}

template <class T>
void winograd_convolve(const Conv2dShape& shape, bool turned, const T* x, const T* w, T* y, T beta,
                       T* workspace) {
  const ForwardPlan<T> plan(shape);
  T* const packed = workspace + plan.weights();
  T* const zeros = packed + plan.panels.size();
  T* const strips = zeros + plan.panels.in;
  transform_weights(turned ? plan.panels.in : plan.panels.out,
                    turned ? plan.panels.out : plan.panels.in, w, workspace);
  pack_weights(plan.panels, turned, workspace, packed);
  std::fill_n(zeros, plan.panels.in, T(0));
#pragma omp parallel num_threads(cpu_threads())
  {
    T* const inputs = strips + omp_get_thread_num() * plan.strip();
    T* const m = inputs + plan.inputs();
#pragma omp for schedule(static)
    for (int64_t strip = 0; strip < plan.tiling.strips(); ++strip) {
      transform_inputs(plan.tiling, strip, x, zeros, inputs);
      multiply_strip(plan, plan.tiling.tiles_of(strip), inputs, packed, m);
      write_outputs(plan.tiling, strip, m, y, beta);
    }
  }
}

template <class T>
void winograd_backward_weight(const Conv2dShape& shape, const T* x, const T* dy, T* dw, T beta,
                              T* workspace) {
  const WeightPlan<T> plan(shape);
  const Tiling<T>& tiling = plan.tiling;
  T* const zeros = workspace + plan.shares * plan.partial();
  T* const strips = zeros + std::max(plan.in, plan.out);
  std::fill_n(zeros, std::max(plan.in, plan.out), T(0));
#pragma omp parallel num_threads(cpu_threads())
  {
    T* const inputs = strips + omp_get_thread_num() * plan.strip();
    T* const gradients = inputs + plan.inputs();
#pragma omp for schedule(static)
    for (int64_t share = 0; share < plan.shares; ++share) {
      T* const sum = workspace + share * plan.partial();
      std::fill_n(sum, plan.partial(), T(0));
      const int64_t end = (share + 1) * tiling.strips() / plan.shares;
      for (int64_t strip = share * tiling.strips() / plan.shares; strip < end; ++strip) {
        transform_inputs(tiling, strip, x, zeros, inputs);
        transform_gradients(tiling, strip, dy, zeros, gradients);
        correlate_strip(plan, tiling.tiles_of(strip), inputs, gradients, sum);
      }
    }
  }
  write_weight_gradient(plan, workspace, dw, beta);
}

template int64_t winograd_workspace<float>(const Conv2dShape&);
template int64_t winograd_workspace<double>(const Conv2dShape&);
template int64_t winograd_weight_workspace<float>(const Conv2dShape&);
template int64_t winograd_weight_workspace<double>(const Conv2dShape&);
template void winograd_convolve<float>(const Conv2dShape&, bool, const float*, const float*, float*,
                                       float, float*);
template void winograd_convolve<double>(const Conv2dShape&, bool, const double*, const double*,
                                        double*, double, double*);
template void winograd_backward_weight<float>(const Conv2dShape&, const float*, const float*,
                                              float*, float, float*);
template void winograd_backward_weight<double>(const Conv2dShape&, const double*, const double*,
                                               double*, double, double*);

}  // namespace tandem::kernels
