// The two register tiles that do all convolution arithmetic on the CPU.
//
// A tile of accumulators stays in vector registers during its reduction: over taps and input
// channels (activations), or over pixels (weight gradients). Each step loads a few vectors and one
// scalar per tile row, and multiplies every pair. Operands are packed (see conv2d_plan.h) with
// pixels kChannelBlock elements apart, so that all addresses of a tile are one pointer plus
// constants.
#pragma once

#include <array>
#include <cstdint>

#include "layers/conv2d/conv2d.h"
#include "src/kernels/vector.h"

namespace tandem::kernels {

// The number of channels in a block of the packed source.
inline constexpr int64_t kChannelBlock = 16;

// Output positions along one axis that use the same taps. Output i is at first + i * step in the
// target. Its tap t uses kernel index kernel[t] and position i + offset[t] of the packed band (on
// the row axis: i * source_step + offset[t]).
struct Axis {
  int64_t outputs = 0;
  int64_t first = 0, step = 1;
  int taps = 0;
  std::array<int, kMaxKernel> kernel{};
  std::array<int64_t, kMaxKernel> offset{};
};

// Where a tile of pixels is written: y = keep * y + tile.
template <class T>
struct PixelTarget {
  T* y;
  int64_t pixel_step;  // elements between neighbouring pixels
  int64_t pixels;      // pixels to write; the tile's other pixels are dropped
  int64_t channels;    // channels to write, at most kVectors vectors
  T keep;
};

template <class T, int kPixels, int kVectors>
void write_pixels(const Vector<T> (&sum)[kPixels][kVectors], const PixelTarget<T>& target) {
  for (int64_t p = 0; p < target.pixels; ++p) {
    for (int v = 0; v < kVectors; ++v) {
      T* y = target.y + p * target.pixel_step + v * kLanes<T>;
      const int64_t lanes = target.channels - v * kLanes<T>;
      if (lanes >= kLanes<T>) {
        store<T>(y, target.keep == T(0) ? sum[p][v] : load(y) * target.keep + sum[p][v]);
        continue;
      }
      for (int64_t lane = 0; lane < lanes; ++lane) {
        y[lane] = target.keep == T(0) ? sum[p][v][lane] : y[lane] * target.keep + sum[p][v][lane];
      }
    }
  }
}

// Computes kPixels neighbouring outputs of one row and kVectors vectors of their channels. Sums
// over all taps and `channels` source channels. x: the packed source at the first output's
// position, with rows row_pitch apart. w: [taps, channels, kVectors * kLanes].
template <class T, int kPixels, int kVectors>
void convolve_tile(const T* x, int64_t row_pitch, const Axis& rows, const Axis& columns,
                   int64_t channels, const T* w, const PixelTarget<T>& target) {
  Vector<T> sum[kPixels][kVectors] = {};
  for (int i = 0; i < rows.taps; ++i) {
    for (int j = 0; j < columns.taps; ++j) {
      const T* tap = x + rows.offset[i] * row_pitch + columns.offset[j] * kChannelBlock;
      for (int64_t c = 0; c < channels; ++c, ++tap, w += kVectors * kLanes<T>) {
        Vector<T> weight[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          weight[v] = load(w + v * kLanes<T>);
        }
#pragma GCC unroll 16
        for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            sum[p][v] += weight[v] * tap[p * kChannelBlock];
          }
        }
      }
    }
  }
  write_pixels<T, kPixels, kVectors>(sum, target);
}

// The weight gradient of one tap, kChannels source channels and kVectors vectors of target
// channels: sum [kChannels, kVectors * kLanes] += the sum over rows x columns pixels of x * dy. dy:
// packed pixels, kVectors * kLanes apart.
template <class T, int kChannels, int kVectors>
void correlate_tile(const T* x, int64_t x_row_pitch, const T* dy, int64_t dy_row_pitch,
                    int64_t rows, int64_t columns, T* sum) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  Vector<T> total[kChannels][kVectors];
#pragma GCC unroll 16
  for (int c = 0; c < kChannels; ++c) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      total[c][v] = load(sum + c * kWidth + v * kLanes<T>);
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    const T* pixel = x + row * x_row_pitch;
    const T* gradient = dy + row * dy_row_pitch;
    for (int64_t column = 0; column < columns;
         ++column, pixel += kChannelBlock, gradient += kWidth) {
      Vector<T> g[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        g[v] = load(gradient + v * kLanes<T>);
      }
#pragma GCC unroll 16
      for (int c = 0; c < kChannels; ++c) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          total[c][v] += g[v] * pixel[c];
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < kChannels; ++c) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      store<T>(sum + c * kWidth + v * kLanes<T>, total[c][v]);
    }
  }
}

}  // namespace tandem::kernels
