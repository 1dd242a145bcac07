#include "layers/batchnorm2d/batchnorm2d.h"

#include <cmath>

#include "layers/batchnorm2d/channel_groups.h"
#include "src/kernels/column_sums.h"
#include "src/kernels/in_f32.h"

namespace tandem {

namespace kernels {

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

// Tests call it from other files.
template void batchnorm2d_statistics<float>(Cpu, const float*, float*, float*, float*, int64_t,
                                            int64_t, float*);
template void batchnorm2d_statistics<double>(Cpu, const double*, double*, double*, float*, int64_t,
                                             int64_t, double*);

template <class W>
void add_to_gradient(Cpu device, int64_t n, const W* sum, W* gradient, W beta) {
  transform(device, n, gradient, AddToGradient<W>{beta}, sum, static_cast<const W*>(gradient));
}

}  // namespace kernels

namespace {

struct BatchNormOp final : Op {
  Tensor x;           // [rows, C]
  Tensor y;           // only after a residual, where x alone does not give the ReLU's mask
  Tensor mean, rstd;  // [C], f32 or, for f64 x, f64
  bool relu = false;
  bool residual = false;

  std::string_view name() const override { return "batchnorm2d"; }
  void backward(Context& context, Tensor& dy) override {
    const DType wide = wide_of(dy.dtype());
    const int64_t channels = mean.elements(), rows = x.elements() / channels;
    const Tensor sums = context.workspace({2, channels}, wide);
    const Tensor scratch = context.workspace(
        {kernels::batchnorm2d_workspace(context.stream.device(), rows, channels)}, wide);
    // With a residual the masked gradient is needed again, so it is stored: in dy's memory if no
    // one else reads dy.
    Tensor masked;
    if (y) {
      masked = dy.unique() ? dy : context.activation(dy.shape(), dy.dtype());
    }
    const Tensor& g = masked ? masked : dy;
    const GradTarget dx = input(0).wanted() ? x_target(context, dy) : GradTarget{};
    const GradTarget dgain = parameter_target(0), dbias = parameter_target(1);
    on_device_and_float(context.stream, dy.dtype(), [&]<class T>(auto device) {
      using W = Wide<T>;
      using enum kernels::ReluMask;
      const kernels::BatchChannels<T> of{mean.data<W>(),
                                         rstd.data<W>(),
                                         parameter(0).value.data<T>(),
                                         parameter(1).value.data<T>(),
                                         rows,
                                         channels};
      kernels::batchnorm2d_backward_sums(
          device, of, dy.data<T>(), x.data<T>(), y ? y.data<T>() : nullptr,
          y ? kFromOutput : (relu ? kFromInput : kNone), masked ? masked.data<T>() : nullptr,
          sums.data<W>(), scratch.data<W>());
      if (dx.into) {
        kernels::batchnorm2d_backward_data(device, of, g.data<T>(), x.data<T>(),
                                           relu && !y ? kFromInput : kNone, sums.data<W>(),
                                           dx.into.data<T>(), W(dx.beta));
      }
      if (dbias.into) {
        kernels::add_to_gradient(device, channels, sums.data<W>(), dbias.into.data<W>(),
                                 W(dbias.beta));
      }
      if (dgain.into) {
        kernels::add_to_gradient(device, channels, sums.data<W>() + channels, dgain.into.data<W>(),
                                 W(dgain.beta));
      }
    });
    if (residual && input(1).wanted()) {
      input(1).add(context, g);
    }
  }

 private:
  // Without a residual, dx may overwrite dy.
  GradTarget x_target(Context& context, const Tensor& dy) {
    if (!residual && dy.unique() && !input(0).slot()->grad) {
      input(0).add(context, dy);
      return {dy, 0};
    }
    return input(0).target(context);
  }
};

}  // namespace

Variable batchnorm2d(Context& context, const Variable& x, Parameter& gain, Parameter& bias,
                     RunningStatistics& statistics, const BatchNormOptions& options) {
  const int64_t channels = gain.shape.elements(), rows = x.elements() / channels;
  const Variable* residual = options.residual;
  require(x.shape()[-1] == channels && (!residual || residual->shape() == x.shape()), [&] {
    return str("batchnorm2d ", gain.name, ": x ", x.shape(), ", residual ",
               residual ? residual->shape() : Shape{}, ", channels ", channels);
  });
  require(!context.training || rows > 1, [&] {
    return str("batchnorm2d ", gain.name, ": the variance of one value per channel is undefined");
  });
  require(context.training || !context.tape,
          [&] { return str("batchnorm2d ", gain.name, ": has no gradient outside training"); });
  auto op = std::make_unique<BatchNormOp>();
  op->x = x.value();
  op->mean = context.activation({channels}, wide_of(x.dtype()));
  op->rstd = context.activation({channels}, wide_of(x.dtype()));
  op->relu = options.relu;
  op->residual = residual != nullptr;
  Tensor y = context.activation(x.shape(), x.dtype());
  Tensor scratch;
  if (context.training) {
    scratch =
        context.workspace({kernels::batchnorm2d_workspace(context.stream.device(), rows, channels)},
                          wide_of(x.dtype()));
  }
  on_device_and_float(context.stream, x.dtype(), [&]<class T>(auto device) {
    using W = Wide<T>;
    W *mean = op->mean.data<W>(), *rstd = op->rstd.data<W>();
    if (context.training) {
      float* observed = context.recomputing ? nullptr : statistics.sum.data<float>();
      kernels::batchnorm2d_statistics(device, x.data<T>(), mean, rstd, observed, rows, channels,
                                      scratch.data<W>());
    } else {
      kernels::batchnorm2d_running(device, statistics.running.data<float>(), mean, rstd, channels);
    }
    kernels::batchnorm2d_normalize<T>(
        device, {mean, rstd, gain.value.data<T>(), bias.value.data<T>(), rows, channels},
        x.data<T>(), residual ? residual->data<T>() : nullptr, options.relu, y.data<T>());
  });
  if (options.relu && residual) {
    op->y = y;
  }
  if (residual) {
    return context.record(std::move(y), std::move(op), {x, *residual}, {&gain, &bias});
  }
  return context.record(std::move(y), std::move(op), {x}, {&gain, &bias});
}

BatchNorm2d::BatchNorm2d(const std::string& name, int64_t channels)
    : gain_{.name = name + ".gain", .shape = {channels}, .init = Initializer::constant(1)},
      bias_{.name = name + ".bias", .shape = {channels}, .init = Initializer::constant(0)},
      statistics_{.name = name, .channels = channels} {}

Variable BatchNorm2d::operator()(Context& context, const Variable& x,
                                 const BatchNormOptions& options) {
  return batchnorm2d(context, x, gain_, bias_, statistics_, options);
}

}  // namespace tandem
