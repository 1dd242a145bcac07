// How the CPU kernels of batch normalisation go through arrays [rows, channels]: in chunks of rows,
// whose sums are added later, and in groups of channels that stay in registers. Only
// batchnorm2d.cpp includes it. The functions are local to that file, so that compilers inline them
// there.
#pragma once

#include <algorithm>

#include "layers/batchnorm2d/batchnorm2d.h"
#include "src/kernels/map.h"
#include "src/kernels/vector.h"

namespace tandem::kernels {

namespace {

constexpr int64_t kChunkRows = 256;  // summed in T; chunks are added in f64
constexpr int64_t kStrip = 64;       // channels whose f64 sums are computed together

int64_t chunks_of(int64_t rows) { return (rows + kChunkRows - 1) / kChunkRows; }

// Calls f<kVectors, kFull>(first channel, lanes) until all channels are covered.
template <class T, class F>
void for_each_group(int64_t channels, F f) {
  constexpr int64_t kWidth = kLanes<T>;
  int64_t first = 0;
  for (; channels - first >= 4 * kWidth; first += 4 * kWidth) {
    f.template operator()<4, true>(first, kWidth);
  }
  for (; channels - first >= 2 * kWidth; first += 2 * kWidth) {
    f.template operator()<2, true>(first, kWidth);
  }
  for (; channels - first >= kWidth; first += kWidth) {
    f.template operator()<1, true>(first, kWidth);
  }
  if (first < channels) {
    f.template operator()<1, false>(first, channels - first);
  }
}

struct RowRange {
  int64_t first, count;
};

template <class F>
void for_each_chunk(int64_t rows, int64_t channels, F f) {
#pragma omp parallel for schedule(static) if (rows * channels >= kParallelElements)
  for (int64_t chunk = 0; chunk < chunks_of(rows); ++chunk) {
    const int64_t first = chunk * kChunkRows;
    f(RowRange{first, std::min(kChunkRows, rows - first)}, chunk);
  }
}

// Calls f(position, vector) for kVectors vectors, from channel `first`, of every row.
template <class T, int kVectors, class F>
void for_each_vector(RowRange range, int64_t channels, int64_t first, F f) {
  for (int64_t row = range.first; row < range.first + range.count; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      f(row * channels + first + v * kLanes<T>, v);
    }
  }
}

// Calls f with a and b as compile-time constants, so that the inner loop does not branch.
template <class F>
void choose(bool a, bool b, F f) {
  if (a) {
    b ? f.template operator()<true, true>() : f.template operator()<true, false>();
  } else {
    b ? f.template operator()<false, true>() : f.template operator()<false, false>();
  }
}

template <class F>
void choose(ReluMask mask, F f) {
  switch (mask) {
    case ReluMask::kNone:
      return f.template operator()<ReluMask::kNone>();
    case ReluMask::kFromInput:
      return f.template operator()<ReluMask::kFromInput>();
    case ReluMask::kFromOutput:
      return f.template operator()<ReluMask::kFromOutput>();
  }
}

template <class T>
Vector<T> relu_of(Vector<T> v) {
  const Vector<T> zero = {};
  return v < zero ? zero : v;  // passes NaN on
}

template <class T>
Vector<T> pass_where_positive(Vector<T> output, Vector<T> gradient) {
  const Vector<T> zero = {};
  return output > zero ? gradient : zero;
}

// The coefficients of a group of channels: normalised = (x - mean) * scale + bias.
template <class T, int kVectors, bool kFull>
struct Affine {
  Vector<T> mean[kVectors], scale[kVectors], bias[kVectors];

  Affine(const BatchChannels<T>& of, int64_t first, int64_t lanes) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t c = first + v * kLanes<T>;
      mean[v] = load_lanes<T, kFull>(of.mean + c, lanes);
      scale[v] =
          load_lanes<T, kFull>(of.gain + c, lanes) * load_lanes<T, kFull>(of.rstd + c, lanes);
      bias[v] = load_lanes<T, kFull>(of.bias + c, lanes);
    }
  }
  Vector<T> operator()(Vector<T> x, int v) const { return (x - mean[v]) * scale[v] + bias[v]; }
};

// The mean of a chunk and its sum of squared deviations, in two passes over cached rows.
template <class T, int kVectors, bool kFull>
void chunk_moments(const T* x, RowRange range, int64_t channels, int64_t first, int64_t lanes,
                   T* mean_of, T* deviation_of) {
  Vector<T> mean[kVectors] = {}, deviation[kVectors] = {};
  for_each_vector<T, kVectors>(range, channels, first, [&](int64_t at, int v) {
    mean[v] += load_lanes<T, kFull>(x + at, lanes);
  });
  for (int v = 0; v < kVectors; ++v) {
    mean[v] /= static_cast<T>(range.count);
  }
  for_each_vector<T, kVectors>(range, channels, first, [&](int64_t at, int v) {
    const Vector<T> d = load_lanes<T, kFull>(x + at, lanes) - mean[v];
    deviation[v] += d * d;
  });
  for (int v = 0; v < kVectors; ++v) {
    store_lanes<T, kFull>(mean_of + first + v * kLanes<T>, mean[v], lanes);
    store_lanes<T, kFull>(deviation_of + first + v * kLanes<T>, deviation[v], lanes);
  }
}

// sums[j] = sum over chunks of partial[chunk, j], in order and in f64.
template <class T>
void add_chunks(const T* partial, int64_t chunks, int64_t count, T* sums) {
  for (int64_t first = 0; first < count; first += kStrip) {
    const int64_t strip = std::min(kStrip, count - first);
    double total[kStrip] = {};
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int64_t j = 0; j < strip; ++j) {
        total[j] += partial[chunk * count + first + j];
      }
    }
    for (int64_t j = 0; j < strip; ++j) {
      sums[first + j] = static_cast<T>(total[j]);
    }
  }
}

}  // namespace

}  // namespace tandem::kernels
