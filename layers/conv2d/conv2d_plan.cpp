#include "layers/conv2d/conv2d_plan.h"

#include <algorithm>

namespace tandem::kernels {

namespace {

// Target size of a band, in elements of one channel block: together with the weights of a tile it
// fits in L1.
constexpr int64_t kBandElements = 5120;

int64_t floor_divide(int64_t a, int64_t b) { return -ceil_divide(-a, b); }

// The taps of a forward axis, the same for all its outputs; consecutive phases are `phase_pitch`
// positions apart.
Axis forward_axis(int64_t kernel, int64_t outputs, int64_t phases, int64_t phase_pitch) {
  Axis axis;
  axis.outputs = outputs;
  axis.taps = static_cast<int>(kernel);
  for (int t = 0; t < axis.taps; ++t) {
    axis.kernel[t] = t;
    axis.offset[t] = (t % phases) * phase_pitch + t / phases;
  }
  return axis;
}

// Input position first + stride * r gets dy[r + (first + padding - k) / stride], for those kernel
// indices k that divide evenly.
Axis transposed_axis(int64_t kernel, int64_t inputs, int64_t stride, int64_t padding, int64_t first,
                     int64_t lowest) {
  Axis axis;
  axis.outputs = first < inputs ? ceil_divide(inputs - first, stride) : 0;
  axis.first = first;
  axis.step = stride;
  for (int64_t k = 0; k < kernel; ++k) {
    const int64_t distance = first + padding - k;
    if (floor_divide(distance, stride) * stride == distance) {
      axis.kernel[axis.taps] = static_cast<int>(k);
      axis.offset[axis.taps] = floor_divide(distance, stride) - lowest;
      ++axis.taps;
    }
  }
  return axis;
}

// Chooses bands of about equal height that fit in the cache.
void choose_bands(ConvolutionPlan& plan) {
  const int64_t row = plan.source.row_pitch() * plan.source_step;
  const int64_t most = std::clamp(kBandElements / row, int64_t{1}, plan.grid_rows);
  plan.band_rows = ceil_divide(plan.grid_rows, ceil_divide(plan.grid_rows, most));
  plan.source.rows = (plan.band_rows - 1) * plan.source_step + plan.row_extent;
}

// The first source position that any tap of grid position 0 reads.
int64_t lowest_tap(int64_t kernel, int64_t stride, int64_t padding) {
  return ceil_divide(padding - (kernel - 1), stride);
}

// How many source positions the taps of one grid position span, over all grids.
int64_t tap_extent(int64_t kernel, int64_t stride, int64_t padding) {
  return (stride - 1 + padding) / stride - floor_divide(padding - (kernel - 1), stride) + 1;
}

}  // namespace

Axis ConvolutionPlan::row_axis(int64_t grid) const {
  return transposed ? transposed_axis(kernel_h, height, stride, padding, grid, first_row)
                    : forward_axis(kernel_h, height, 1, 1);
}

Axis ConvolutionPlan::column_axis(int64_t grid) const {
  return transposed ? transposed_axis(kernel_w, width, stride, padding, grid, source.first_column)
                    : forward_axis(kernel_w, width, stride, source.columns);
}

ConvolutionPlan plan_forward(const Conv2dShape& s) {
  ConvolutionPlan plan;
  plan.batch = s.batch, plan.channels = s.out_channels;
  plan.height = s.out_height(), plan.width = s.out_width();
  plan.kernel_h = s.kernel_h, plan.kernel_w = s.kernel_w;
  plan.stride = s.stride, plan.padding = s.padding;
  plan.source = {.height = s.height, .width = s.width, .channels = s.in_channels};
  plan.source.phases = s.stride;
  plan.source.columns = plan.width + (s.kernel_w - 1) / s.stride;
  plan.source.first_column = -s.padding;
  plan.first_row = -s.padding;
  plan.source_step = s.stride;
  plan.row_extent = s.kernel_h;
  plan.grid_rows = plan.height;
  choose_bands(plan);
  return plan;
}

ConvolutionPlan plan_backward_data(const Conv2dShape& s) {
  ConvolutionPlan plan;
  plan.transposed = true;
  plan.batch = s.batch, plan.channels = s.in_channels;
  plan.height = s.height, plan.width = s.width;
  plan.kernel_h = s.kernel_h, plan.kernel_w = s.kernel_w;
  plan.stride = s.stride, plan.padding = s.padding;
  plan.source = {.height = s.out_height(), .width = s.out_width(), .channels = s.out_channels};
  plan.source.first_column = lowest_tap(s.kernel_w, s.stride, s.padding);
  plan.source.columns =
      ceil_divide(s.width, s.stride) + tap_extent(s.kernel_w, s.stride, s.padding) - 1;
  plan.first_row = lowest_tap(s.kernel_h, s.stride, s.padding);
  plan.row_extent = tap_extent(s.kernel_h, s.stride, s.padding);
  plan.grid_rows = ceil_divide(s.height, s.stride);
  choose_bands(plan);
  return plan;
}

template <class T>
void copy_band(const Band& band, const T* image, int64_t first_row, int64_t rows, T* packed) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t y = first_row + row;
    for (int64_t phase = 0; phase < band.phases; ++phase) {
      // Packed columns [begin, end) of this phase lie inside the image.
      const int64_t offset = band.first_column + phase;
      int64_t begin = std::clamp(ceil_divide(-offset, band.phases), int64_t{0}, band.columns);
      int64_t end =
          std::clamp(floor_divide(band.width - 1 - offset, band.phases) + 1, begin, band.columns);
      if (y < 0 || y >= band.height) {
        begin = end = band.columns;
      }
      for (int64_t b = 0; b < band.blocks(); ++b) {
        T* out = packed + b * band.block_pitch() + row * band.row_pitch() +
                 phase * band.columns * band.block;
        const int64_t first_channel = b * band.block;
        const int64_t channels = std::min(band.block, band.channels - first_channel);
        std::fill_n(out, begin * band.block, T(0));
        for (int64_t column = begin; column < end; ++column) {
          const T* in = image + (y * band.width + offset + column * band.phases) * band.channels +
                        first_channel;
          T* pixel = out + column * band.block;
          if (channels == kChannelBlock) {
            std::copy_n(in, kChannelBlock, pixel);  // the constant length compiles to a few moves
          } else {
            std::copy_n(in, channels, pixel);
          }
        }
        std::fill(out + end * band.block, out + band.columns * band.block, T(0));
      }
    }
  }
}

template void copy_band<float>(const Band&, const float*, int64_t, int64_t, float*);
template void copy_band<double>(const Band&, const double*, int64_t, int64_t, double*);

}  // namespace tandem::kernels
