#include "layers/norm.h"

#include <algorithm>
#include <cmath>

#include "src/core/map.h"

namespace tandem {

namespace kernels {

namespace {

constexpr int64_t kChunkRows = 32;  // rows summed together before the sum over chunks

int64_t chunks_of(int64_t rows) { return (rows + kChunkRows - 1) / kChunkRows; }

template <class T>
T mean_of(const T* x, int64_t width) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < width; ++j) {
    total += x[j];
  }
  return total / static_cast<T>(width);
}

// 1 / sqrt(mean of (x - center)^2 + eps). Subtracting first keeps small variances exact.
template <class T>
T rstd_of(const T* x, T center, int64_t width) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < width; ++j) {
    total += (x[j] - center) * (x[j] - center);
  }
  return T(1) / std::sqrt(total / static_cast<T>(width) + static_cast<T>(kNormEpsilon));
}

// One row of norm_backward: dx, and dy * normalised x and dy added to the chunk's sums.
template <class T>
void backward_row(const T* dy, const T* x, const T* gain, T center, T rstd, T* dx, T dx_beta,
                  T* gain_sum, T* bias_sum, bool centered, int64_t width) {
  T plain = 0, along = 0;
#pragma omp simd reduction(+ : plain, along)
  for (int64_t j = 0; j < width; ++j) {
    const T g = dy[j] * gain[j];
    const T normal = (x[j] - center) * rstd;
    plain += g;
    along += g * normal;
    gain_sum[j] += dy[j] * normal;
    bias_sum[j] += dy[j];
  }
  if (!dx) {
    return;
  }
  plain = centered ? plain / static_cast<T>(width) : T(0);
  along /= static_cast<T>(width);
  const auto gradient = [&](int64_t j) {
    return rstd * (dy[j] * gain[j] - plain - (x[j] - center) * rstd * along);
  };
  if (dx_beta == T(0)) {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      dx[j] = gradient(j);
    }
  } else {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      dx[j] = dx_beta * dx[j] + gradient(j);
    }
  }
}

}  // namespace

template <class T>
void norm_forward(Cpu, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd,
                  int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = x + r * width;
    T* to = y + r * width;
    const T center = mean ? mean_of(from, width) : T(0);
    const T factor = rstd_of(from, center, width);
    rstd[r] = factor;
    if (mean) {
      mean[r] = center;
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) {
        to[j] = (from[j] - center) * factor * gain[j] + bias[j];
      }
    } else {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) {
        to[j] = from[j] * factor * gain[j];
      }
    }
  }
}

int64_t norm_workspace(Cpu, int64_t rows, int64_t width) { return 2 * chunks_of(rows) * width; }

template <class T>
void norm_backward(Cpu, const T* dy, const T* x, const T* gain, const T* mean, const T* rstd, T* dx,
                   T dx_beta, T* workspace, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
  for (int64_t chunk = 0; chunk < chunks_of(rows); ++chunk) {
    T* gain_sum = workspace + 2 * chunk * width;
    std::fill_n(gain_sum, 2 * width, T(0));
    const int64_t last = std::min(rows, (chunk + 1) * kChunkRows);
    for (int64_t r = chunk * kChunkRows; r < last; ++r) {
      backward_row(dy + r * width, x + r * width, gain, mean ? mean[r] : T(0), rstd[r],
                   dx ? dx + r * width : nullptr, dx_beta, gain_sum, gain_sum + width,
                   mean != nullptr, width);
    }
  }
}

template <class T>
void norm_backward_parameters(Cpu, const T* workspace, T* dgain, T dgain_beta, T* dbias,
                              T dbias_beta, int64_t rows, int64_t width) {
  const auto add_chunks = [&](const T* sums, T* gradient, T beta) {
    for (int64_t j = 0; beta == T(0) && j < width; ++j) {
      gradient[j] = T(0);
    }
    for (int64_t chunk = 0; chunk < chunks_of(rows); ++chunk) {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) {
        gradient[j] += sums[2 * chunk * width + j];
      }
    }
  };
  add_chunks(workspace, dgain, dgain_beta);
  if (dbias) {
    add_chunks(workspace + width, dbias, dbias_beta);
  }
}

template void norm_forward<float>(Cpu, const float*, const float*, const float*, float*, float*,
                                  float*, int64_t, int64_t);
template void norm_forward<double>(Cpu, const double*, const double*, const double*, double*,
                                   double*, double*, int64_t, int64_t);
template void norm_backward<float>(Cpu, const float*, const float*, const float*, const float*,
                                   const float*, float*, float, float*, int64_t, int64_t);
template void norm_backward<double>(Cpu, const double*, const double*, const double*, const double*,
                                    const double*, double*, double, double*, int64_t, int64_t);
template void norm_backward_parameters<float>(Cpu, const float*, float*, float, float*, float,
                                              int64_t, int64_t);
template void norm_backward_parameters<double>(Cpu, const double*, double*, double, double*, double,
                                               int64_t, int64_t);

}  // namespace kernels

namespace {

struct NormOp final : Op {
  Tensor x;           // [rows, width]
  Tensor mean, rstd;  // [rows]; no mean: RMSNorm

  std::string_view name() const override { return mean ? "layer_norm" : "rms_norm"; }
  void backward(Context& context, Tensor& dy) override {
    Parameter& gain = parameter(0);
    const int64_t width = gain.shape[0], rows = dy.elements() / width;
    on_device_and_float(context.stream, dy.dtype(), [&]<class T>(auto device) {
      const Tensor sums =
          context.workspace({kernels::norm_workspace(device, rows, width)}, dy.dtype());
      const GradTarget dx = input(0).wanted() ? input(0).target(context) : GradTarget{};
      kernels::norm_backward(device, dy.data<T>(), x.data<T>(), gain.value.data<T>(),
                             mean ? mean.data<T>() : nullptr, rstd.data<T>(),
                             dx.into ? dx.into.data<T>() : nullptr, T(dx.beta), sums.data<T>(),
                             rows, width);
      const GradTarget dgain = grad_target(gain);
      const GradTarget dbias = has_parameter(1) ? grad_target(parameter(1)) : GradTarget{};
      kernels::norm_backward_parameters(device, sums.data<T>(), dgain.into.data<T>(), T(dgain.beta),
                                        dbias.into ? dbias.into.data<T>() : nullptr, T(dbias.beta),
                                        rows, width);
    });
  }
};

// LayerNorm with a bias, RMSNorm without.
Variable normalize(Context& context, const Variable& x, Parameter& gain, Parameter* bias) {
  const int64_t width = gain.shape[0], rows = x.elements() / width;
  require(x.shape()[-1] == width,
          [&] { return str("norm ", gain.name, ": x ", x.shape(), ", gain ", gain.shape); });
  auto op = std::make_unique<NormOp>();
  op->x = x.value();
  op->rstd = context.activation({rows}, x.dtype());
  if (bias) {
    op->mean = context.activation({rows}, x.dtype());
  }
  Tensor y = context.activation(x.shape(), x.dtype());
  on_device_and_float(context.stream, x.dtype(), [&]<class T>(auto device) {
    kernels::norm_forward(device, x.data<T>(), gain.value.data<T>(),
                          bias ? bias->value.data<T>() : nullptr, y.data<T>(),
                          bias ? op->mean.data<T>() : nullptr, op->rstd.data<T>(), rows, width);
  });
  return context.record(std::move(y), std::move(op), {x}, {&gain, bias});
}

Parameter gain_parameter(const std::string& name, int64_t width) {
  return {.name = name + ".gain", .shape = {width}, .init = Initializer::constant(1)};
}

}  // namespace

Variable layer_norm(Context& context, const Variable& x, Parameter& gain, Parameter& bias) {
  return normalize(context, x, gain, &bias);
}

Variable rms_norm(Context& context, const Variable& x, Parameter& gain) {
  return normalize(context, x, gain, nullptr);
}

LayerNorm::LayerNorm(const std::string& name, int64_t width)
    : gain_(gain_parameter(name, width)),
      bias_{.name = name + ".bias", .shape = {width}, .init = Initializer::constant(0)} {}

Variable LayerNorm::operator()(Context& context, const Variable& x) {
  return layer_norm(context, x, gain_, bias_);
}

void LayerNorm::visit(const ParameterVisitor& visitor) {
  visitor(gain_);
  visitor(bias_);
}

RmsNorm::RmsNorm(const std::string& name, int64_t width) : gain_(gain_parameter(name, width)) {}

Variable RmsNorm::operator()(Context& context, const Variable& x) {
  return rms_norm(context, x, gain_);
}

void RmsNorm::visit(const ParameterVisitor& visitor) { visitor(gain_); }

}  // namespace tandem
