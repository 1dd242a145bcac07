// The CPU kernels of batch normalisation.
#include <algorithm>
#include <cmath>

#include "layers/batchnorm2d/batchnorm2d.h"
#include "src/kernels/column_sums.h"
#include "src/kernels/in_f32.h"
#include "src/kernels/vector.h"

namespace tandem {

namespace kernels {

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

int64_t batchnorm2d_workspace(Device device, int64_t rows, int64_t channels) {
  const int64_t chunks =
      device == Device::kCpu ? chunks_of(rows) : ColumnChunks(rows, channels).chunks;
  return chunks * 2 * channels;
}

template <class T>
void batchnorm2d_statistics(Cpu device, const T* x, Wide<T>* mean, Wide<T>* rstd, float* observed,
                            int64_t rows, int64_t channels, Wide<T>* workspace) {
  if constexpr (kIs16Bit<T>) {
    in_f32(
        [&](const float* x32) {
          batchnorm2d_statistics(device, x32, mean, rstd, observed, rows, channels, workspace);
        },
        in(x, rows * channels));
  } else {
    for_each_chunk(rows, channels, [&](RowRange range, int64_t chunk) {
      T* moments = workspace + chunk * 2 * channels;
      for_each_group<T>(channels, [&]<int kVectors, bool kFull>(int64_t first, int64_t lanes) {
        chunk_moments<T, kVectors, kFull>(x, range, channels, first, lanes, moments,
                                          moments + channels);
      });
    });
    const auto rows_of = [&](int64_t chunk) {
      return static_cast<double>(std::min(kChunkRows, rows - chunk * kChunkRows));
    };
    for (int64_t first = 0; first < channels; first += kStrip) {
      const int64_t count = std::min(kStrip, channels - first);
      double average[kStrip] = {}, deviation[kStrip] = {};
      for (int64_t chunk = 0; chunk < chunks_of(rows); ++chunk) {
        const T* chunk_mean = workspace + chunk * 2 * channels + first;
        const double weight = rows_of(chunk) / static_cast<double>(rows);
        for (int64_t c = 0; c < count; ++c) {
          average[c] += weight * chunk_mean[c];
        }
      }
      // Squared deviations from the common mean: within chunks, plus those of the chunks' means.
      for (int64_t chunk = 0; chunk < chunks_of(rows); ++chunk) {
        const T* chunk_mean = workspace + chunk * 2 * channels + first;
        for (int64_t c = 0; c < count; ++c) {
          const double d = chunk_mean[c] - average[c];
          deviation[c] += chunk_mean[channels + c] + rows_of(chunk) * d * d;
        }
      }
      for (int64_t c = 0; c < count; ++c) {
        const double variance = deviation[c] / static_cast<double>(rows);
        mean[first + c] = static_cast<T>(average[c]);
        rstd[first + c] = static_cast<T>(1 / std::sqrt(variance + kBatchNormEpsilon));
        if (observed) {
          observed[first + c] += static_cast<float>(average[c]);
          observed[channels + first + c] +=
              static_cast<float>(deviation[c] / static_cast<double>(rows - 1));
        }
      }
    }
  }
}

template <class W>
void batchnorm2d_running(Cpu, const float* running, W* mean, W* rstd, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) {
    mean[c] = static_cast<W>(running[c]);
    rstd[c] = static_cast<W>(1 / std::sqrt(running[channels + c] + kBatchNormEpsilon));
  }
}

template <class T>
void batchnorm2d_normalize(Cpu device, const BatchChannels<T>& of, const T* x, const T* residual,
                           bool relu, T* y) {
  const int64_t rows = of.rows, channels = of.channels;
  if constexpr (kIs16Bit<T>) {
    const int64_t n = rows * channels;
    in_f32(
        [&](const float* x32, const float* residual32, const float* gain32, const float* bias32,
            float* y32) {
          batchnorm2d_normalize<float>(device, {of.mean, of.rstd, gain32, bias32, rows, channels},
                                       x32, residual32, relu, y32);
        },
        in(x, n), in(residual, n), in(of.gain, channels), in(of.bias, channels), out(y, n));
  } else {
    for_each_chunk(rows, channels, [&](RowRange range, int64_t) {
      for_each_group<T>(channels, [&]<int kVectors, bool kFull>(int64_t first, int64_t lanes) {
        const Affine<T, kVectors, kFull> affine(of, first, lanes);
        choose(residual != nullptr, relu, [&]<bool kResidual, bool kRelu>() {
          for_each_vector<T, kVectors>(range, channels, first, [&](int64_t at, int v) {
            Vector<T> value = affine(load_lanes<T, kFull>(x + at, lanes), v);
            if constexpr (kResidual) {
              value += load_lanes<T, kFull>(residual + at, lanes);
            }
            store_lanes<T, kFull>(y + at, kRelu ? relu_of<T>(value) : value, lanes);
          });
        });
      });
    });
  }
}

template <class T>
void batchnorm2d_backward_sums(Cpu device, const BatchChannels<T>& of, const T* dy, const T* x,
                               const T* y, ReluMask mask, T* g, Wide<T>* sums, Wide<T>* workspace) {
  const int64_t rows = of.rows, channels = of.channels;
  if constexpr (kIs16Bit<T>) {
    const int64_t n = rows * channels;
    in_f32(
        [&](const float* dy32, const float* x32, const float* y32, const float* gain32,
            const float* bias32, float* g32) {
          batchnorm2d_backward_sums<float>(device,
                                           {of.mean, of.rstd, gain32, bias32, rows, channels}, dy32,
                                           x32, y32, mask, g32, sums, workspace);
        },
        in(dy, n), in(x, n), in(y, n), in(of.gain, channels), in(of.bias, channels), out(g, n));
  } else {
    for_each_chunk(rows, channels, [&](RowRange range, int64_t chunk) {
      T* partial = workspace + chunk * 2 * channels;
      for_each_group<T>(channels, [&]<int kVectors, bool kFull>(int64_t first, int64_t lanes) {
        const Affine<T, kVectors, kFull> affine(of, first, lanes);
        Vector<T> sum[kVectors] = {}, product[kVectors] = {};
        choose(mask, [&]<ReluMask kMask>() {
          choose(g != nullptr, false, [&]<bool kWrite, bool>() {
            for_each_vector<T, kVectors>(range, channels, first, [&](int64_t at, int v) {
              const Vector<T> input = load_lanes<T, kFull>(x + at, lanes);
              Vector<T> gradient = load_lanes<T, kFull>(dy + at, lanes);
              if constexpr (kMask == ReluMask::kFromInput) {
                gradient = pass_where_positive<T>(affine(input, v), gradient);
              } else if constexpr (kMask == ReluMask::kFromOutput) {
                gradient = pass_where_positive<T>(load_lanes<T, kFull>(y + at, lanes), gradient);
              }
              if constexpr (kWrite) {
                store_lanes<T, kFull>(g + at, gradient, lanes);
              }
              sum[v] += gradient;
              product[v] += gradient * (input - affine.mean[v]);
            });
          });
        });
        for (int v = 0; v < kVectors; ++v) {
          const int64_t c = first + v * kLanes<T>;
          store_lanes<T, kFull>(partial + c, sum[v], lanes);
          store_lanes<T, kFull>(partial + channels + c,
                                product[v] * load_lanes<T, kFull>(of.rstd + c, lanes), lanes);
        }
      });
    });
    add_chunks(workspace, chunks_of(rows), 2 * channels, sums);
  }
}

template <class T>
void batchnorm2d_backward_data(Cpu device, const BatchChannels<T>& of, const T* dy, const T* x,
                               ReluMask mask, const Wide<T>* sums, T* dx, Wide<T> beta) {
  const int64_t rows = of.rows, channels = of.channels;
  if constexpr (kIs16Bit<T>) {
    const int64_t n = rows * channels;
    in_f32(
        [&](const float* dy32, const float* x32, const float* gain32, const float* bias32,
            float* dx32) {
          batchnorm2d_backward_data<float>(device,
                                           {of.mean, of.rstd, gain32, bias32, rows, channels}, dy32,
                                           x32, mask, sums, dx32, beta);
        },
        in(dy, n), in(x, n), in(of.gain, channels), in(of.bias, channels), inout(dx, n));
  } else {
    for_each_chunk(rows, channels, [&](RowRange range, int64_t) {
      for_each_group<T>(channels, [&]<int kVectors, bool kFull>(int64_t first, int64_t lanes) {
        const Affine<T, kVectors, kFull> affine(of, first, lanes);
        // dx = scale * g - (slope * (x - mean) + constant)
        Vector<T> slope[kVectors], constant[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          const int64_t c = first + v * kLanes<T>;
          const Vector<T> factor = affine.scale[v] / static_cast<T>(rows);
          constant[v] = factor * load_lanes<T, kFull>(sums + c, lanes);
          slope[v] = factor * load_lanes<T, kFull>(sums + channels + c, lanes) *
                     load_lanes<T, kFull>(of.rstd + c, lanes);
        }
        choose(mask == ReluMask::kFromInput, beta != T(0), [&]<bool kMasked, bool kAdd>() {
          for_each_vector<T, kVectors>(range, channels, first, [&](int64_t at, int v) {
            const Vector<T> input = load_lanes<T, kFull>(x + at, lanes);
            Vector<T> gradient = load_lanes<T, kFull>(dy + at, lanes);
            if constexpr (kMasked) {
              gradient = pass_where_positive<T>(affine(input, v), gradient);
            }
            Vector<T> result =
                affine.scale[v] * gradient - (slope[v] * (input - affine.mean[v]) + constant[v]);
            if constexpr (kAdd) {
              result += beta * load_lanes<T, kFull>(dx + at, lanes);
            }
            store_lanes<T, kFull>(dx + at, result, lanes);
          });
        });
      });
    });
  }
}

template void batchnorm2d_running<float>(Cpu, const float*, float*, float*, int64_t);
template void batchnorm2d_running<double>(Cpu, const float*, double*, double*, int64_t);
#define TANDEM_BATCHNORM2D(T)                                                                    \
  template void batchnorm2d_statistics<T>(Cpu, const T*, Wide<T>*, Wide<T>*, float*, int64_t,    \
                                          int64_t, Wide<T>*);                                    \
  template void batchnorm2d_normalize<T>(Cpu, const BatchChannels<T>&, const T*, const T*, bool, \
                                         T*);                                                    \
  template void batchnorm2d_backward_sums<T>(Cpu, const BatchChannels<T>&, const T*, const T*,   \
                                             const T*, ReluMask, T*, Wide<T>*, Wide<T>*);        \
  template void batchnorm2d_backward_data<T>(Cpu, const BatchChannels<T>&, const T*, const T*,   \
                                             ReluMask, const Wide<T>*, T*, Wide<T>);
TANDEM_FOR_CPU(TANDEM_BATCHNORM2D)

}  // namespace kernels

}  // namespace tandem
