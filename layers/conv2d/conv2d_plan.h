// How the CPU cuts a convolution into register tiles: geometry, packed bands of rows, packed
// weights. Internal to conv2d.
//
// The forward pass and the gradient of the input have the same form: each target pixel is a sum
// over taps of a source image. The source is x or dy, the target y or dx. One work item is a band
// of rows of one image. Its source rows are copied into a zero-padded band, with channels in blocks
// of kChannelBlock, so that tiles need no branches. With stride s, a forward source row is stored
// as s phases (columns f, f + s, ...), so that neighbouring outputs read neighbouring elements.
// With stride s, dx splits into s x s grids of pixels, each with its own taps.
#pragma once

#include <cstdint>

#include "layers/conv2d/conv2d.h"
#include "layers/conv2d/conv2d_tile.h"

namespace tandem::kernels {

// Weight gradients are summed over a fixed number of shares of the batch, whatever the number of
// threads. The shares are then added in order.
inline constexpr int64_t kShares = 16;

// a / b rounded up; b > 0.
inline int64_t ceil_divide(int64_t a, int64_t b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }

// A packed, zero-padded band of image rows: [blocks][rows][phases][columns][block].
struct Band {
  int64_t height = 0, width = 0, channels = 0;  // of the image
  int64_t block = kChannelBlock;
  int64_t rows = 0;  // capacity
  int64_t phases = 1;
  int64_t columns = 0;       // of one phase
  int64_t first_column = 0;  // in the image; negative in the padding

  int64_t blocks() const { return ceil_divide(channels, block); }
  int64_t row_pitch() const { return phases * columns * block; }
  int64_t block_pitch() const { return rows * row_pitch(); }
  // After the last pixel there is space that a tile may read; the results are not stored.
  int64_t size() const { return blocks() * block_pitch() + kAccumulators * kChannelBlock; }
};

// Copies image rows [first_row, first_row + rows); pixels outside the image are zero. In the last
// block, lanes beyond the channels are not written. The band's owner must clear them once: tiles
// compute with them, and although the results are not stored, odd bits could be slow.
template <class T>
void copy_band(const Band& band, const T* image, int64_t first_row, int64_t rows, T* packed);

// A convolution as sums over taps, in either direction.
struct ConvolutionPlan {
  Band source;
  int64_t batch = 0, height = 0, width = 0, channels = 0;  // of the target
  int64_t kernel_h = 0, kernel_w = 0, stride = 1, padding = 0;
  bool transposed = false;  // the target is dx
  int64_t first_row = 0;    // source row of the first tap of grid row 0
  int64_t source_step = 1;  // source rows per grid row
  int64_t row_extent = 0;   // source rows that one grid row needs
  int64_t grid_rows = 0;    // of the largest grid
  int64_t band_rows = 0;    // grid rows in one work item

  int64_t grids() const { return transposed ? stride : 1; }  // per axis
  Axis row_axis(int64_t grid) const;
  Axis column_axis(int64_t grid) const;
  int64_t bands() const { return ceil_divide(grid_rows, band_rows); }
  int64_t items() const { return batch * bands(); }
  int64_t taps() const { return kernel_h * kernel_w; }
};

ConvolutionPlan plan_forward(const Conv2dShape& shape);
ConvolutionPlan plan_backward_data(const Conv2dShape& shape);

// The number of vectors of target channels in a register tile: two if the channels then fill whole
// tiles.
template <class T>
int tile_vectors(int64_t channels) {
  return ceil_divide(channels, kLanes<T>) % 2 == 0 ? 2 : 1;
}

}  // namespace tandem::kernels
