// Which pixels and taps of a convolution belong together, for its GPU kernels. Divisions occur only
// where a thread starts. Internal to conv2d.
#pragma once

#include "layers/conv2d/conv2d.h"

namespace tandem::conv2d_detail {

// Conv2dShape in 32 bits.
struct Sizes {
  int batch, height, width, in, out_height, out_width, out;
  int kernel_h, kernel_w, stride, padding;

  explicit Sizes(const Conv2dShape& s)
      : batch(static_cast<int>(s.batch)),
        height(static_cast<int>(s.height)),
        width(static_cast<int>(s.width)),
        in(static_cast<int>(s.in_channels)),
        out_height(static_cast<int>(s.out_height())),
        out_width(static_cast<int>(s.out_width())),
        out(static_cast<int>(s.out_channels)),
        kernel_h(static_cast<int>(s.kernel_h)),
        kernel_w(static_cast<int>(s.kernel_w)),
        stride(static_cast<int>(s.stride)),
        padding(static_cast<int>(s.padding)) {}
};

// --- indices ---

// A position in three nested ranges; the outer range has no limit.
struct Index3 {
  int outer, middle, inner;
};
struct Extents {
  int middle, inner;
};

__device__ inline Index3 split(int64_t i, Extents extents) {
  const int64_t rest = i / extents.inner;
  return {static_cast<int>(rest / extents.middle), static_cast<int>(rest % extents.middle),
          static_cast<int>(i % extents.inner)};
}

// at + step, with carries instead of divisions; step.middle and step.inner are in their ranges.
__device__ inline Index3 advance(Index3 at, Index3 step, Extents extents) {
  Index3 sum{at.outer + step.outer, at.middle + step.middle, at.inner + step.inner};
  if (sum.inner >= extents.inner) {
    sum.inner -= extents.inner;
    ++sum.middle;
  }
  if (sum.middle >= extents.middle) {
    sum.middle -= extents.middle;
    ++sum.outer;
  }
  return sum;
}

__device__ inline Index3 next(Index3 at, Extents extents) {
  return advance(at, {0, 0, 1}, extents);
}

// --- taps and pixels ---

// Target positions along one axis that use the same taps. Position r is at first + r * step in the
// target. Its tap t uses kernel index kernel_first + t * kernel_step and source position
// source_first + r * source_step + t * tap_step.
struct TapAxis {
  int positions, first, step;
  int taps, kernel_first, kernel_step;
  int source_size, source_first, source_step, tap_step;

  // Negative if outside the source.
  __device__ int source(int position, int tap) const {
    const int i = source_first + position * source_step + tap * tap_step;
    return i < source_size ? i : -1;
  }
};

__device__ inline TapAxis forward_axis(int kernel, int stride, int padding, int inputs,
                                       int outputs) {
  return {outputs, 0, 1, kernel, 0, 1, inputs, -padding, stride, 1};
}

// Input position first + stride * r gets output r + (first + padding - k) / stride, for those
// kernel indices k that divide evenly: every stride-th, from (first + padding) % stride.
__device__ inline TapAxis transposed_axis(int kernel, int stride, int padding, int inputs,
                                          int outputs, int first) {
  const int k = (first + padding) % stride;
  return {(inputs - first + stride - 1) / stride,
          first,
          stride,
          (kernel - k + stride - 1) / stride,
          k,
          stride,
          outputs,
          (first + padding - k) / stride,
          1,
          -1};
}

// A grid of target pixels (image, row, column) that use the same taps (row, column, source
// channel).
struct TapGrid {
  TapAxis rows, columns;
  int batch, channels;  // of the source

  __device__ int64_t pixels() const { return int64_t{batch} * rows.positions * columns.positions; }
  __device__ Extents pixel_extents() const { return {rows.positions, columns.positions}; }
  __device__ int taps() const { return rows.taps * columns.taps * channels; }
  __device__ Extents tap_extents() const { return {columns.taps, channels}; }

  // The element of the source that belongs to this pixel and tap; negative if there is none.
  __device__ int64_t source(Index3 pixel, Index3 tap) const {
    const int row = rows.source(pixel.middle, tap.outer);
    const int column = columns.source(pixel.inner, tap.middle);
    if (pixel.outer >= batch || tap.outer >= rows.taps || row < 0 || column < 0) {
      return -1;
    }
    const int64_t image = int64_t{pixel.outer} * rows.source_size * columns.source_size;
    return (image + int64_t{row} * columns.source_size + column) * channels + tap.inner;
  }
};

__device__ inline TapGrid forward_grid(const Sizes& s) {
  return {forward_axis(s.kernel_h, s.stride, s.padding, s.height, s.out_height),
          forward_axis(s.kernel_w, s.stride, s.padding, s.width, s.out_width), s.batch, s.in};
}

// The grid of the pixels (row, column) + stride * (i, j) of dx.
__device__ inline TapGrid transposed_grid(const Sizes& s, int row, int column) {
  return {transposed_axis(s.kernel_h, s.stride, s.padding, s.height, s.out_height, row),
          transposed_axis(s.kernel_w, s.stride, s.padding, s.width, s.out_width, column), s.batch,
          s.out};
}

}  // namespace tandem::conv2d_detail
