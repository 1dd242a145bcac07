// How a GPU cuts the sums of the weight gradient's product: for its kernels, and for the size of
// their workspace, which every build knows. Internal to conv2d.
#pragma once

#include <algorithm>

#include "layers/conv2d/conv2d.h"

namespace tandem::conv2d_detail {

inline constexpr int kTileRows = 128, kTileColumns = 64;  // sums of a block

// Rows of the product are taps (kernel row, kernel column, input channel), columns output channels,
// k runs over output pixels. The pixels are cut into shares, each summed by blocks of its own; the
// partial sums [shares, C_out, KH, KW, C_in] are added in order.
//
// Shares enough for kBlocksWanted blocks, but none so small that its epilogue dominates. A function
// of the sizes alone, as the sums depend on it.
struct Shares {
  static constexpr int64_t kBlocksWanted = 512;
  static constexpr int64_t kFewestPixels = 128;
  static constexpr int64_t kMultiple = 32;  // whole slices of every type
  int64_t pixels;                           // of one share
  int64_t count;

  explicit Shares(const Conv2dShape& s) {
    const auto pieces = [](int64_t n, int64_t each) { return (n + each - 1) / each; };
    const int64_t tiles =
        pieces(s.w_elements() / s.out_channels, kTileRows) * pieces(s.out_channels, kTileColumns);
    const int64_t all = s.batch * s.out_height() * s.out_width();
    const int64_t share = std::max(pieces(all, pieces(kBlocksWanted, tiles)), kFewestPixels);
    pixels = pieces(share, kMultiple) * kMultiple;
    count = std::max<int64_t>(pieces(all, pixels), 1);
  }
};

}  // namespace tandem::conv2d_detail
