#include "layers/cross_entropy/cross_entropy.h"

#include <algorithm>

#include "src/core/math.h"
#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

namespace {

template <class T>
Wide<T> largest_of(const T* x, int64_t n) {
  Wide<T> largest = x[0];
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < n; ++j) {
    const Wide<T> value = x[j];
    largest = value > largest ? value : largest;
  }
  return largest;
}

// log(sum of exp(x[j])). If any x[j] is NaN, the sum and the result are NaN.
template <class T>
Wide<T> log_sum_exp(const T* x, int64_t n) {
  const Wide<T> largest = largest_of(x, n);
  Wide<T> total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < n; ++j) {
    total += math::exp(Wide<T>(x[j]) - largest);
  }
  return largest + std::log(total);
}

}  // namespace

template <class T>
void cross_entropy_forward(Cpu, const T* logits, const int32_t* targets, Wide<T>* losses,
                           Wide<T>* log_sum, LogitRows shape) {
  const int64_t rows = shape.rows, classes = shape.classes, width = shape.width;
  for (int64_t n = 0; n < rows; ++n) {
    if (targets[n] != kIgnoreTarget && (targets[n] < 0 || targets[n] >= classes)) {
      fail(ExitCode::kData,
           str("target ", targets[n], " of row ", n, " is outside the ", classes, " classes"));
    }
  }
#pragma omp parallel for schedule(static) if (rows * classes >= kParallelElements)
  for (int64_t n = 0; n < rows; ++n) {
    const bool counts = targets[n] != kIgnoreTarget;
    const T* row = logits + n * width;
    log_sum[n] = counts ? log_sum_exp(row, classes) : Wide<T>(0);
    losses[n] = counts ? log_sum[n] - Wide<T>(row[targets[n]]) : Wide<T>(0);
  }
}

template <class T>
void cross_entropy_backward(Cpu, const Wide<T>* dlosses, const int32_t* targets,
                            const Wide<T>* log_sum, T* logits, LogitRows shape) {
  const int64_t rows = shape.rows, classes = shape.classes, width = shape.width;
#pragma omp parallel for schedule(static) if (rows * classes >= kParallelElements)
  for (int64_t n = 0; n < rows; ++n) {
    T* row = logits + n * width;
    if (targets[n] == kIgnoreTarget) {
      std::fill_n(row, width, T(0));
      continue;
    }
    std::fill(row + classes, row + width, T(0));
    const Wide<T> scale = dlosses[n], offset = log_sum[n], logit = row[targets[n]];
#pragma omp simd
    for (int64_t j = 0; j < classes; ++j) {
      row[j] = T(math::exp(Wide<T>(row[j]) - offset) * scale);
    }
    if constexpr (kIs16Bit<T>) {
      // The rounded probability would lose most digits of p - 1 if p is close to one.
      row[targets[n]] = T(math::exp(logit - offset) * scale - scale);
    } else {
      row[targets[n]] -= scale;
    }
  }
}

template <class T>
void count_correct(Cpu, const T* logits, const int32_t* targets, LogitRows shape, int64_t* result) {
  const int64_t rows = shape.rows, classes = shape.classes, width = shape.width;
  int64_t correct = 0;
#pragma omp parallel for schedule(static) reduction(+ : correct) if (rows * classes >= \
                                                                     kParallelElements)
  for (int64_t n = 0; n < rows; ++n) {
    const T* row = logits + n * width;
    correct +=
        targets[n] != kIgnoreTarget && std::max_element(row, row + classes) - row == targets[n];
  }
  *result = correct;
}

template void cross_entropy_forward<float>(Cpu, const float*, const int32_t*, float*, float*,
                                           LogitRows);
template void cross_entropy_forward<double>(Cpu, const double*, const int32_t*, double*, double*,
                                            LogitRows);
template void cross_entropy_forward<Bf16>(Cpu, const Bf16*, const int32_t*, float*, float*,
                                          LogitRows);
template void cross_entropy_forward<Fp16>(Cpu, const Fp16*, const int32_t*, float*, float*,
                                          LogitRows);
template void cross_entropy_backward<float>(Cpu, const float*, const int32_t*, const float*, float*,
                                            LogitRows);
template void cross_entropy_backward<double>(Cpu, const double*, const int32_t*, const double*,
                                             double*, LogitRows);
template void cross_entropy_backward<Bf16>(Cpu, const float*, const int32_t*, const float*, Bf16*,
                                           LogitRows);
template void cross_entropy_backward<Fp16>(Cpu, const float*, const int32_t*, const float*, Fp16*,
                                           LogitRows);
template void count_correct<float>(Cpu, const float*, const int32_t*, LogitRows, int64_t*);
template void count_correct<double>(Cpu, const double*, const int32_t*, LogitRows, int64_t*);
template void count_correct<Bf16>(Cpu, const Bf16*, const int32_t*, LogitRows, int64_t*);
template void count_correct<Fp16>(Cpu, const Fp16*, const int32_t*, LogitRows, int64_t*);

}  // namespace kernels

namespace {

struct CrossEntropyOp final : Op {
  Tensor logits;   // [N, width]; backward overwrites it with its gradient
  Tensor targets;  // i32 [N]
  Tensor log_sum;  // [N], f32 or, for f64 logits, f64
  kernels::LogitRows shape;

  std::string_view name() const override { return "cross_entropy"; }
  void backward(Context& context, Tensor& dy) override {
    on_device_and_float(context.stream, logits.dtype(), [&]<class T>(auto device) {
      kernels::cross_entropy_backward(device, dy.data<Wide<T>>(), targets.data<int32_t>(),
                                      log_sum.data<Wide<T>>(), logits.data<T>(), shape);
    });
    input(0).add(context, logits);
  }
};

kernels::LogitRows shape_of(const Tensor& logits, const Tensor& targets,
                            std::optional<int64_t> classes) {
  const int64_t width = logits.shape()[-1];
  require(logits.shape().rank() == 2 && targets.elements() == logits.shape()[0] &&
              classes.value_or(width) <= width,
          [&] {
            return str("cross_entropy: logits ", logits.shape(), ", targets ", targets.shape(),
                       ", classes ", classes.value_or(width));
          });
  return {logits.shape()[0], classes.value_or(width), width};
}

}  // namespace

Variable cross_entropy(Context& context, const Variable& logits, const Tensor& targets,
                       std::optional<int64_t> classes) {
  auto op = std::make_unique<CrossEntropyOp>();
  op->shape = shape_of(logits.value(), targets, classes);
  op->logits = logits.value();
  op->targets = targets;
  op->log_sum = context.activation({op->shape.rows}, wide_of(logits.dtype()));
  Tensor losses = context.activation({op->shape.rows}, wide_of(logits.dtype()));
  on_device_and_float(context.stream, logits.dtype(), [&]<class T>(auto device) {
    kernels::cross_entropy_forward(device, logits.data<T>(), targets.data<int32_t>(),
                                   losses.data<Wide<T>>(), op->log_sum.data<Wide<T>>(), op->shape);
  });
  return context.record(std::move(losses), std::move(op), {logits});
}

Tensor count_correct(Context& context, const Tensor& logits, const Tensor& targets,
                     std::optional<int64_t> classes) {
  const kernels::LogitRows shape = shape_of(logits, targets, classes);
  Tensor result = context.activation({1}, DType::kI64);
  on_device_and_float(context.stream, logits.dtype(), [&]<class T>(auto device) {
    kernels::count_correct(device, logits.data<T>(), targets.data<int32_t>(), shape,
                           result.data<int64_t>());
  });
  return result;
}

}  // namespace tandem
