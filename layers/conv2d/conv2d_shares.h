// How a GPU divides the sums of the weight gradient. This is a header of its own because builds
// without CUDA need the workspace size too. Internal to conv2d.
#pragma once

#include <algorithm>

#include "layers/conv2d/conv2d.h"

namespace tandem::conv2d_detail {

inline constexpr int kTileRows = 128, kTileColumns = 64;  // sums in one block

// Rows of the product are taps (kernel row, kernel column, input channel), columns are output
// channels, and k counts output pixels. The pixels are cut into shares, and each share is summed by
// separate blocks. The partial sums [shares, C_out, KH, KW, C_in] are added in order.
//
// There are enough shares for kBlocksWanted blocks, but each is long enough that its epilogue does
// not dominate. The cut depends only on the sizes, because it determines the bits of the sums.
struct Shares {
  static constexpr int64_t kBlocksWanted = 512;
  static constexpr int64_t kFewestPixels = 128;
  static constexpr int64_t kMultiple = 32;  // whole slices for every type
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
