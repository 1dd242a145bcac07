// The CPU kernels of convolution.
#include <omp.h>

#include <algorithm>

#include "layers/conv2d/conv2d_plan.h"
#include "layers/conv2d/conv2d_shares.h"
#include "layers/conv2d/winograd.h"
#include "src/kernels/in_f32.h"

namespace tandem {

namespace kernels {

namespace {

int64_t aligned(int64_t elements) { return ceil_divide(elements, kChannelBlock) * kChannelBlock; }

// How many target channels a tile computes.
template <class T>
int64_t tile_width(int64_t channels) {
  return tile_vectors<T>(channels) * kLanes<T>;
}

// The number of elements of one grid's packed weights.
template <class T>
int64_t packed_size(const ConvolutionPlan& plan, const Axis& rows, const Axis& columns) {
  return rows.taps * columns.taps * plan.source.channels *
         ceil_divide(plan.channels, tile_width<T>(plan.channels)) * tile_width<T>(plan.channels);
}

// Calls f(rows, columns, first element of the grid's packed weights) for every grid.
template <class T, class F>
void for_each_grid(const ConvolutionPlan& plan, F f) {
  int64_t first = 0;
  for (int64_t a = 0; a < plan.grids(); ++a) {
    const Axis rows = plan.row_axis(a);
    for (int64_t b = 0; b < plan.grids(); ++b) {
      const Axis columns = plan.column_axis(b);
      f(rows, columns, first);
      first += packed_size<T>(plan, rows, columns);
    }
  }
}

// From w [C_out, KH, KW, C_in] to [tiles, source blocks, taps, channels of the block, width] per
// grid.
template <class T>
void pack_weights(const ConvolutionPlan& plan, const T* w, T* packed) {
  const int64_t in = plan.transposed ? plan.channels : plan.source.channels;
  const int64_t source_step = plan.transposed ? plan.taps() * in : 1;
  const int64_t target_step = plan.transposed ? 1 : plan.taps() * in;
  const int64_t width = tile_width<T>(plan.channels);
  for_each_grid<T>(plan, [&](const Axis& rows, const Axis& columns, int64_t first) {
    T* to = packed + first;
    for (int64_t target = 0; target < plan.channels; target += width) {
      const int64_t lanes = std::min(width, plan.channels - target);
      for (int64_t block = 0; block < plan.source.channels; block += kChannelBlock) {
        const int64_t end = std::min(block + kChannelBlock, plan.source.channels);
        for (int64_t tap = 0; tap < rows.taps * columns.taps; ++tap) {
          const int64_t index =
              rows.kernel[tap / columns.taps] * plan.kernel_w + columns.kernel[tap % columns.taps];
          for (int64_t source = block; source < end; ++source, to += width) {
            const T* from = w + index * in + source * source_step + target * target_step;
            for (int64_t lane = 0; lane < lanes; ++lane) {
              to[lane] = from[lane * target_step];
            }
            std::fill(to + lanes, to + width, T(0));
          }
        }
      }
    }
  });
}

// One row of a grid, for one tile of target channels and one block of source channels.
template <class T, int kVectors>
void convolve_row(const T* x, int64_t row_pitch, const Axis& rows, const Axis& columns,
                  int64_t channels, const T* w, PixelTarget<T> target) {
  constexpr int kPixels = kAccumulators / kVectors;
  T* const y = target.y;
  for (int64_t q = 0; q < columns.outputs;) {
    const int64_t left = columns.outputs - q;
    target.y = y + q * target.pixel_step;
    if (left > kPixels / 2) {
      target.pixels = std::min(left, int64_t{kPixels});
      convolve_tile<T, kPixels, kVectors>(x + q * kChannelBlock, row_pitch, rows, columns, channels,
                                          w, target);
      q += kPixels;
    } else {
      target.pixels = left;
      convolve_tile<T, kPixels / 2, kVectors>(x + q * kChannelBlock, row_pitch, rows, columns,
                                              channels, w, target);
      q += kPixels / 2;
    }
  }
}

// All pixels in rows [begin, end) of one grid; `x` is the packed band.
template <class T, int kVectors>
void convolve_grid(const ConvolutionPlan& plan, const Axis& rows, const Axis& columns,
                   int64_t begin, int64_t end, const T* x, const T* w, T* image, T beta) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  const Band& band = plan.source;
  for (int64_t channel = 0; channel < plan.channels; channel += kWidth) {
    for (int64_t block = 0; block < band.blocks(); ++block) {
      const int64_t channels = std::min(kChannelBlock, band.channels - block * kChannelBlock);
      const T* packed = x + block * band.block_pitch();
      for (int64_t row = begin; row < end; ++row) {
        const int64_t y = rows.first + row * rows.step;
        const PixelTarget<T> target{
            .y = image + (y * plan.width + columns.first) * plan.channels + channel,
            .pixel_step = columns.step * plan.channels,
            .pixels = 0,
            .channels = plan.channels - channel,
            .keep = block == 0 ? beta : T(1)};
        convolve_row<T, kVectors>(packed + (row - begin) * plan.source_step * band.row_pitch(),
                                  band.row_pitch(), rows, columns, channels, w, target);
      }
      w += rows.taps * columns.taps * channels * kWidth;
    }
  }
}

template <class T>
int64_t direct_workspace(const ConvolutionPlan& plan) {
  int64_t packed = 0;
  for_each_grid<T>(plan, [&](const Axis& rows, const Axis& columns, int64_t) {
    packed += packed_size<T>(plan, rows, columns);
  });
  return aligned(packed) + cpu_threads() * aligned(plan.source.size());
}

// target = beta * target + convolution.
template <class T>
void convolve_directly(const ConvolutionPlan& plan, const T* source, const T* w, T* target, T beta,
                       T* workspace) {
  const int64_t packed = direct_workspace<T>(plan) - cpu_threads() * aligned(plan.source.size());
  pack_weights(plan, w, workspace);
#pragma omp parallel num_threads(cpu_threads())
  {
    T* band = workspace + packed + omp_get_thread_num() * aligned(plan.source.size());
    std::fill_n(band, plan.source.size(), T(0));
#pragma omp for schedule(static)
    for (int64_t item = 0; item < plan.items(); ++item) {
      const int64_t n = item / plan.bands();
      const int64_t begin = item % plan.bands() * plan.band_rows;
      const int64_t end = std::min(begin + plan.band_rows, plan.grid_rows);
      const T* image = source + n * plan.source.height * plan.source.width * plan.source.channels;
      copy_band(plan.source, image, begin * plan.source_step + plan.first_row,
                (end - begin - 1) * plan.source_step + plan.row_extent, band);
      T* result = target + n * plan.height * plan.width * plan.channels;
      for_each_grid<T>(plan, [&](const Axis& rows, const Axis& columns, int64_t first) {
        const auto grid =
            tile_vectors<T>(plan.channels) == 2 ? convolve_grid<T, 2> : convolve_grid<T, 1>;
        grid(plan, rows, columns, begin, std::min(end, rows.outputs), band, workspace + first,
             result, beta);
      });
    }
  }
}

// --- weight gradient ---

// The sizes of one weight gradient. Partial sums are [tiles, taps, padded in channels, tile width].
template <class T>
struct CorrelationPlan {
  ConvolutionPlan x;
  Band dy;
  int64_t padded_in;
  int64_t shares;

  explicit CorrelationPlan(const Conv2dShape& shape)
      : x(plan_forward(shape)),
        padded_in(aligned(shape.in_channels)),
        shares(std::min(kShares, x.items())) {
    dy = {.height = x.height, .width = x.width, .channels = x.channels};
    dy.block = tile_width<T>(x.channels);
    dy.rows = x.band_rows;
    dy.columns = x.width;
  }
  int64_t partial_size() const { return dy.blocks() * x.taps() * padded_in * dy.block; }
  int64_t thread_size() const { return aligned(x.source.size()) + aligned(dy.size()); }
  int64_t workspace() const { return shares * partial_size() + cpu_threads() * thread_size(); }
};

// Adds the gradient of one band to `sum`.
template <class T, int kVectors>
void correlate_band(const CorrelationPlan<T>& plan, int64_t grid_rows, const T* x, const T* dy,
                    T* sum) {
  constexpr int kChannels = kAccumulators / kVectors;
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  const Band& band = plan.x.source;
  const Axis rows = plan.x.row_axis(0), columns = plan.x.column_axis(0);
  const int64_t x_pitch = plan.x.source_step * band.row_pitch();
  for (int64_t tile = 0; tile < plan.dy.blocks(); ++tile) {
    const T* gradient = dy + tile * plan.dy.block_pitch();
    for (int i = 0; i < rows.taps; ++i) {
      for (int j = 0; j < columns.taps; ++j, sum += plan.padded_in * kWidth) {
        const T* tap = x + rows.offset[i] * band.row_pitch() + columns.offset[j] * kChannelBlock;
        for (int64_t c = 0; c < band.channels;) {
          const T* channel = tap + c / kChannelBlock * band.block_pitch() + c % kChannelBlock;
          if (band.channels - c > 4) {
            correlate_tile<T, kChannels, kVectors>(channel, x_pitch, gradient, plan.dy.row_pitch(),
                                                   grid_rows, columns.outputs, sum + c * kWidth);
            c += kChannels;
          } else {
            correlate_tile<T, 4, kVectors>(channel, x_pitch, gradient, plan.dy.row_pitch(),
                                           grid_rows, columns.outputs, sum + c * kWidth);
            c += 4;
          }
        }
      }
    }
  }
}

// dw = beta * dw + the sum of the shares' partial sums, in order.
template <class T>
void add_shares(const CorrelationPlan<T>& plan, const T* partial, T* dw, T beta) {
  const int64_t in = plan.x.source.channels, width = plan.dy.block, taps = plan.x.taps();
#pragma omp parallel for schedule(static) if (plan.partial_size() >= kParallelElements)
  for (int64_t tile_tap = 0; tile_tap < plan.dy.blocks() * taps; ++tile_tap) {
    const int64_t first = tile_tap / taps * width, tap = tile_tap % taps;
    const int64_t lanes = std::min(width, plan.x.channels - first);
    for (int64_t c = 0; c < in; ++c) {
      T total[2 * kLanes<T>] = {};
      for (int64_t share = 0; share < plan.shares; ++share) {
        const T* from =
            partial + share * plan.partial_size() + (tile_tap * plan.padded_in + c) * width;
#pragma omp simd
        for (int64_t lane = 0; lane < width; ++lane) {
          total[lane] += from[lane];
        }
      }
      for (int64_t lane = 0; lane < lanes; ++lane) {
        T& d = dw[((first + lane) * taps + tap) * in + c];
        d = total[lane] + (beta == T(0) ? T(0) : beta * d);
      }
    }
  }
}

// dw = beta * dw + gradient of the weights.
template <class T>
void correlate(const CorrelationPlan<T>& plan, const Conv2dShape& shape, const T* x, const T* dy,
               T* dw, T beta, T* workspace) {
  const ConvolutionPlan& forward = plan.x;
  const int64_t items = forward.items();
#pragma omp parallel num_threads(cpu_threads())
  {
    T* x_band =
        workspace + plan.shares * plan.partial_size() + omp_get_thread_num() * plan.thread_size();
    T* dy_band = x_band + aligned(forward.source.size());
    std::fill_n(x_band, plan.thread_size(), T(0));
#pragma omp for schedule(static)
    for (int64_t share = 0; share < plan.shares; ++share) {
      T* sum = workspace + share * plan.partial_size();
      std::fill_n(sum, plan.partial_size(), T(0));
      for (int64_t item = share * items / plan.shares; item < (share + 1) * items / plan.shares;
           ++item) {
        const int64_t n = item / forward.bands();
        const int64_t begin = item % forward.bands() * forward.band_rows;
        const int64_t rows = std::min(forward.band_rows, forward.grid_rows - begin);
        copy_band(forward.source, x + n * shape.height * shape.width * shape.in_channels,
                  begin * shape.stride - shape.padding, (rows - 1) * shape.stride + shape.kernel_h,
                  x_band);
        copy_band(plan.dy, dy + n * forward.height * forward.width * forward.channels, begin, rows,
                  dy_band);
        const auto band =
            plan.dy.block == 2 * kLanes<T> ? correlate_band<T, 2> : correlate_band<T, 1>;
        band(plan, rows, x_band, dy_band, sum);
      }
    }
  }
  add_shares(plan, workspace, dw, beta);
}

}  // namespace

int64_t conv2d_forward_workspace(Device device, DType dtype, const Conv2dShape& shape) {
  return device == Device::kCuda ? 0 : on_float(dtype, [&]<class T>() {
    return winograd_pays(shape) ? winograd_workspace<Wide<T>>(shape)
                                : direct_workspace<Wide<T>>(plan_forward(shape));
  });
}

int64_t conv2d_backward_data_workspace(Device device, DType dtype, const Conv2dShape& shape) {
  const Conv2dShape to_dx = winograd_backward_data(shape);
  return device == Device::kCuda ? 0 : on_float(dtype, [&]<class T>() {
    return winograd_pays(to_dx) ? winograd_workspace<Wide<T>>(to_dx)
                                : direct_workspace<Wide<T>>(plan_backward_data(shape));
  });
}

int64_t conv2d_backward_weight_workspace(Device device, DType dtype, const Conv2dShape& shape) {
  if (device == Device::kCuda) {
    return conv2d_detail::Shares(shape).count * shape.w_elements();
  }
  return on_float(dtype, [&]<class T>() {
    return winograd_pays(shape) ? winograd_weight_workspace<Wide<T>>(shape)
                                : CorrelationPlan<Wide<T>>(shape).workspace();
  });
}

template <class T>
void conv2d_forward(Cpu device, const Conv2dShape& shape, const T* x, const T* w, T* y,
                    Wide<T>* workspace) {
  if constexpr (kIs16Bit<T>) {
    in_f32([&](const float* x32, const float* w32,
               float* y32) { conv2d_forward(device, shape, x32, w32, y32, workspace); },
           in(x, shape.x_elements()), in(w, shape.w_elements()), out(y, shape.y_elements()));
  } else if (winograd_pays(shape)) {
    winograd_convolve(shape, false, x, w, y, T(0), workspace);
  } else {
    convolve_directly(plan_forward(shape), x, w, y, T(0), workspace);
  }
}

template <class T>
void conv2d_backward_data(Cpu device, const Conv2dShape& shape, const T* dy, const T* w, T* dx,
                          Wide<T> beta, Wide<T>* workspace) {
  if constexpr (kIs16Bit<T>) {
    in_f32(
        [&](const float* dy32, const float* w32, float* dx32) {
          conv2d_backward_data(device, shape, dy32, w32, dx32, beta, workspace);
        },
        in(dy, shape.y_elements()), in(w, shape.w_elements()), inout(dx, shape.x_elements()));
  } else if (const Conv2dShape to_dx = winograd_backward_data(shape); winograd_pays(to_dx)) {
    winograd_convolve(to_dx, true, dy, w, dx, beta, workspace);
  } else {
    convolve_directly(plan_backward_data(shape), dy, w, dx, beta, workspace);
  }
}

template <class T>
void conv2d_backward_weight(Cpu device, const Conv2dShape& shape, const T* x, const T* dy,
                            Wide<T>* dw, Wide<T> beta, Wide<T>* workspace) {
  if constexpr (kIs16Bit<T>) {
    in_f32(
        [&](const float* x32, const float* dy32) {
          conv2d_backward_weight(device, shape, x32, dy32, dw, beta, workspace);
        },
        in(x, shape.x_elements()), in(dy, shape.y_elements()));
  } else if (winograd_pays(shape)) {
    winograd_backward_weight(shape, x, dy, dw, beta, workspace);
  } else {
    correlate(CorrelationPlan<T>(shape), shape, x, dy, dw, beta, workspace);
  }
}

#define TANDEM_CONV2D(T)                                                                          \
  template void conv2d_forward<T>(Cpu, const Conv2dShape&, const T*, const T*, T*, Wide<T>*);     \
  template void conv2d_backward_data<T>(Cpu, const Conv2dShape&, const T*, const T*, T*, Wide<T>, \
                                        Wide<T>*);                                                \
  template void conv2d_backward_weight<T>(Cpu, const Conv2dShape&, const T*, const T*, Wide<T>*,  \
                                          Wide<T>, Wide<T>*);
TANDEM_FOR_CPU(TANDEM_CONV2D)

}  // namespace kernels
}  // namespace tandem
