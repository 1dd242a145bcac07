#include "layers/norm/norm.h"

#include <algorithm>
#include <cmath>

#include "layers/add/add.h"
#include "src/kernels/elementwise.h"
#include "src/kernels/in_f32.h"

namespace tandem {

namespace kernels {

namespace {

constexpr int64_t kChunkRows = 32;  // rows summed together before the sum over chunks

// Few rows per chunk on a GPU, so that small batches keep it busy. Each chunk is a block, and the
// number of blocks is what a large GPU runs at a time: two on each of 132 multiprocessors.
constexpr int64_t kGpuChunkRows = 16, kMostGpuChunks = 264;

template <class T>
T mean_of(const T* x, int64_t width) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < width; ++j) {
    total += x[j];
  }
  return total / static_cast<T>(width);
}

// 1 / sqrt(mean of (x - center)^2 + epsilon). Subtracting first keeps small variances exact.
template <class T>
T rstd_of(const T* x, T center, T epsilon, int64_t width) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < width; ++j) {
    total += (x[j] - center) * (x[j] - center);
  }
  return T(1) / std::sqrt(total / static_cast<T>(width) + epsilon);
}

template <class T>
void add_row(const T* x, const T* branch, T* sum, int64_t width) {
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) {
    sum[j] = x[j] + branch[j];
  }
}

// bias is null for RMSNorm.
template <class T>
void forward_row(const T* x, const T* gain, const T* bias, T center, T rstd, T* y, int64_t width) {
  if (bias) {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      y[j] = (x[j] - center) * rstd * gain[j] + bias[j];
    }
  } else {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      y[j] = x[j] * rstd * gain[j];
    }
  }
}

// One row of norm_backward. Writes dx. Adds dy * normalised x to gain_sum, and dy to bias_sum.
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
void norm_forward(Cpu device, const T* x, const T* branch, const T* gain, const T* bias, T* sum,
                  T* y, Wide<T>* mean, Wide<T>* rstd, Wide<T> epsilon, int64_t rows,
                  int64_t width) {
  if constexpr (kIs16Bit<T>) {
    if (branch) {
      transform(device, rows * width, sum, Plus{}, x, branch);
      x = sum;
    }
    in_f32(
        [&](const float* x32, const float* gain32, const float* bias32, float* y32) {
          norm_forward<float>(device, x32, nullptr, gain32, bias32, nullptr, y32, mean, rstd,
                              epsilon, rows, width);
        },
        in(x, rows * width), in(gain, width), in(bias, width), out(y, rows * width));
  } else {
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
    for (int64_t r = 0; r < rows; ++r) {
      const T* from = x + r * width;
      if (branch) {
        add_row(from, branch + r * width, sum + r * width, width);
        from = sum + r * width;
      }
      const T center = mean ? mean_of(from, width) : T(0);
      rstd[r] = rstd_of(from, center, epsilon, width);
      if (mean) {
        mean[r] = center;
      }
      forward_row(from, gain, bias, center, rstd[r], y + r * width, width);
    }
  }
}

int64_t norm_chunks(Device device, int64_t rows) {
  return device == Device::kCpu
             ? (rows + kChunkRows - 1) / kChunkRows
             : std::min(kMostGpuChunks, (rows + kGpuChunkRows - 1) / kGpuChunkRows);
}

template <class T>
void norm_backward(Cpu device, const T* dy, const T* x, const T* gain, const Wide<T>* mean,
                   const Wide<T>* rstd, T* dx, Wide<T> dx_beta, NormSums<Wide<T>> sums,
                   int64_t rows, int64_t width) {
  if constexpr (kIs16Bit<T>) {
    in_f32(
        [&](const float* dy32, const float* x32, const float* gain32, float* dx32) {
          norm_backward<float>(device, dy32, x32, gain32, mean, rstd, dx32, dx_beta,
                               {sums.gain, sums.bias, nullptr}, rows, width);
        },
        in(dy, rows * width), in(x, rows * width), in(gain, width), inout(dx, rows * width));
  } else {
#pragma omp parallel for schedule(static) if (rows * width >= kParallelElements)
    for (int64_t chunk = 0; chunk < norm_chunks(Device::kCpu, rows); ++chunk) {
      T* gain_sum = sums.gain + chunk * width;
      T* bias_sum = sums.bias + chunk * width;
      std::fill_n(gain_sum, width, T(0));
      std::fill_n(bias_sum, width, T(0));
      const int64_t last = std::min(rows, (chunk + 1) * kChunkRows);
      for (int64_t r = chunk * kChunkRows; r < last; ++r) {
        backward_row(dy + r * width, x + r * width, gain, mean ? mean[r] : T(0), rstd[r],
                     dx ? dx + r * width : nullptr, dx_beta, gain_sum, bias_sum, mean != nullptr,
                     width);
      }
    }
  }
}

}  // namespace kernels

namespace {

struct NormOp final : Op {
  Tensor x;           // [rows, width]
  Tensor mean, rstd;  // [rows]; mean is empty for RMSNorm

  std::string_view name() const override { return mean ? "layer_norm" : "rms_norm"; }
  void backward(Context& context, Tensor& dy) override {
    const Parameter& gain = parameter(0);
    const int64_t width = gain.shape[0], rows = dy.elements() / width;
    const GradTarget dx = input(0).wanted() ? input(0).target(context) : GradTarget{};
    const auto sums = [&] {
      return context.workspace({kernels::norm_chunks(context.stream.device(), rows), width},
                               wide_of(dy.dtype()));
    };
    Tensor dgain = sums(), dbias = sums(), dx_sums = input(0).wants_row_sums() ? sums() : Tensor();
    const Work work = touching(dy, x, mean, rstd, dx, dgain, dbias, dx_sums);
    on_device(context.stream, work, dy.dtype(), [&]<class T>(auto device) {
      using W = Wide<T>;
      const auto wide = [](const Tensor& tensor) { return tensor ? tensor.data<W>() : nullptr; };
      kernels::norm_backward<T>(device, dy.data<T>(), x.data<T>(), gain.value.data<T>(), wide(mean),
                                rstd.data<W>(), dx.into ? dx.into.data<T>() : nullptr, W(dx.beta),
                                {wide(dgain), wide(dbias), wide(dx_sums)}, rows, width);
    });
    add_rows(0, std::move(dgain));
    add_rows(1, std::move(dbias));
    if (dx_sums) {
      input(0).set_row_sums(std::move(dx_sums));
    }
  }
};

// LayerNorm if there is a bias, otherwise RMSNorm; of x + branch if there is a branch, otherwise of
// x.
//
// One kernel computes the sum and its norm, but the tape records them as two ops: in backward the
// norm adds its gradient to the one that the sum already has from the residual stream.
Normalized normalize(Context& context, const Variable& x, const Variable* branch, Parameter& gain,
                     Parameter* bias, double epsilon) {
  const int64_t width = gain.shape[0], rows = x.elements() / width;
  require(x.shape()[-1] == width && (!branch || branch->shape() == x.shape()), [&] {
    return str("norm ", gain.name, ": x ", x.shape(), ", gain ", gain.shape,
               branch ? str(", branch ", branch->shape()) : "");
  });
  const DType dtype = x.dtype();
  Tensor sum = x.value();
  if (branch) {
    sum = branch->value().unique() ? branch->value() : context.activation(x.shape(), dtype);
  }
  auto op = std::make_unique<NormOp>();
  op->x = sum;
  op->rstd = context.activation({rows}, wide_of(dtype));
  if (bias) {
    op->mean = context.activation({rows}, wide_of(dtype));
  }
  Tensor y = context.activation(x.shape(), dtype);
  Work work = touching(sum, y, op->mean, op->rstd);
  work += branch ? touching(x.value(), branch->value()) : Work();
  on_device(context.stream, work, dtype, [&]<class T>(auto device) {
    using W = Wide<T>;
    kernels::norm_forward(
        device, x.data<T>(), branch ? branch->data<T>() : nullptr, gain.value.data<T>(),
        bias ? bias->value.data<T>() : nullptr, branch ? sum.data<T>() : nullptr, y.data<T>(),
        bias ? op->mean.data<W>() : nullptr, op->rstd.data<W>(), W(epsilon), rows, width);
  });
  const Variable total = branch ? record_sum(context, std::move(sum), x, *branch) : x;
  return {total, context.record(std::move(y), std::move(op), {total}, {&gain, bias})};
}

}  // namespace

Variable layer_norm(Context& context, const Variable& x, Parameter& gain, Parameter& bias,
                    double epsilon) {
  return normalize(context, x, nullptr, gain, &bias, epsilon).y;
}

Variable rms_norm(Context& context, const Variable& x, Parameter& gain, double epsilon) {
  return normalize(context, x, nullptr, gain, nullptr, epsilon).y;
}

Normalized add_layer_norm(Context& context, const Variable& x, Variable branch, Parameter& gain,
                          Parameter& bias, double epsilon) {
  return normalize(context, x, &branch, gain, &bias, epsilon);
}

Normalized add_rms_norm(Context& context, const Variable& x, Variable branch, Parameter& gain,
                        double epsilon) {
  return normalize(context, x, &branch, gain, nullptr, epsilon);
}

Norm::Norm(const std::string& name, int64_t width, double epsilon, bool with_bias)
    : gain_{.name = name + ".gain", .shape = {width}, .init = Initializer::constant(1)},
      bias_{.name = name + ".bias", .shape = {width}, .init = Initializer::constant(0)},
      epsilon_(epsilon),
      with_bias_(with_bias) {}

Variable Norm::operator()(Context& context, const Variable& x) {
  return normalize(context, x, nullptr, gain_, bias(), epsilon_).y;
}

Normalized Norm::add(Context& context, const Variable& x, Variable branch) {
  return normalize(context, x, &branch, gain_, bias(), epsilon_);
}

std::vector<Parameter*> Norm::parameters() {
  return with_bias_ ? std::vector{&gain_, &bias_} : std::vector{&gain_};
}

}  // namespace tandem
