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

// Replaces a row of logits by its gradient.
template <class T>
void differentiate_row(T* row, int32_t target, Wide<T> log_sum, Wide<T> scale, LogitRows shape) {
  const int64_t classes = shape.classes;
  const Wide<T> logit = row[target];
  std::fill(row + classes, row + shape.width, T(0));
#pragma omp simd
  for (int64_t j = 0; j < classes; ++j) {
    row[j] = T(math::exp(Wide<T>(row[j]) - log_sum) * scale);
  }
  if constexpr (kIs16Bit<T>) {
    // The rounded probability would lose most digits of p - 1 if p is close to one.
    row[target] = T(math::exp(logit - log_sum) * scale - scale);
  } else {
    row[target] -= scale;
  }
}

}  // namespace

void require_targets(const int32_t* targets, int64_t rows, int64_t classes) {
  for (int64_t n = 0; n < rows; ++n) {
    if (targets[n] != kIgnoreTarget && (targets[n] < 0 || targets[n] >= classes)) {
      fail_data("target ", targets[n], " of row ", n, " is outside the ", classes, " classes");
    }
  }
}

template <class T>
void cross_entropy(Cpu, const T* logits, const int32_t* targets, Wide<T>* losses, LogitRows shape) {
  const int64_t rows = shape.rows, classes = shape.classes, width = shape.width;
  require_targets(targets, rows, classes);
#pragma omp parallel for schedule(static) if (rows * classes >= kParallelElements)
  for (int64_t n = 0; n < rows; ++n) {
    const T* row = logits + n * width;
    losses[n] = targets[n] == kIgnoreTarget ? Wide<T>(0)
                                            : log_sum_exp(row, classes) - Wide<T>(row[targets[n]]);
  }
}

template <class T>
void cross_entropy_gradient(Cpu, T* logits, const int32_t* targets, Wide<T>* losses,
                            RowScale<Wide<T>> scale, LogitRows shape) {
  const int64_t rows = shape.rows, classes = shape.classes, width = shape.width;
  require_targets(targets, rows, classes);
#pragma omp parallel for schedule(static) if (rows * classes >= kParallelElements)
  for (int64_t n = 0; n < rows; ++n) {
    T* row = logits + n * width;
    Wide<T> loss = 0;
    if (targets[n] == kIgnoreTarget) {
      std::fill_n(row, width, T(0));
    } else {
      const Wide<T> log_sum = log_sum_exp(row, classes);
      loss = log_sum - Wide<T>(row[targets[n]]);
      differentiate_row(row, targets[n], log_sum, scale.values[n * scale.stride], shape);
    }
    if (losses) {
      losses[n] = loss;
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

}  // namespace kernels

namespace {

struct CrossEntropyOp final : Op {
  Tensor logits;   // [N, width]; backward overwrites it with its gradient
  Tensor targets;  // i32 [N]
  kernels::LogitRows shape;

  std::string_view name() const override { return "cross_entropy"; }
  void backward(Context& context, Tensor& dy) override {
    const Work work = touching(logits, logits, targets, dy);
    on_device(context.stream, work, logits.dtype(), [&]<class T>(auto device) {
      kernels::cross_entropy_gradient<T>(device, logits.data<T>(), targets.data<int32_t>(), nullptr,
                                         {dy.data<Wide<T>>(), 1}, shape);
    });
    input(0).add(context, logits);
  }
};

kernels::LogitRows shape_of(const Tensor& logits, const Tensor& targets,
                            std::optional<int64_t> classes) {
  const int64_t width = logits.shape()[-1];
  require(logits.shape().rank() == 2 && targets.elements() == logits.shape()[0] &&
              classes.value_or(width) <= width,
          "cross_entropy: logits ", logits.shape(), ", targets ", targets.shape(), ", classes ",
          classes.value_or(width));
  return {logits.shape()[0], classes.value_or(width), width};
}

}  // namespace

Variable cross_entropy(Context& context, const Variable& logits, const Tensor& targets,
                       std::optional<int64_t> classes) {
  const kernels::LogitRows shape = shape_of(logits.value(), targets, classes);
  Tensor losses = context.activation({shape.rows}, wide_of(logits.dtype()));
  Work work = touching(logits.value(), targets, losses);
  if (context.loss_gradient && logits.wanted() && context.saves()) {
    work += touching(logits.value());
    on_device(context.stream, work, logits.dtype(), [&]<class T>(auto device) {
      if constexpr (std::is_same_v<T, double>) {
        fail(ExitCode::kInternal, "cross_entropy: a loss_gradient is f32, the logits are f64");
      } else {
        kernels::cross_entropy_gradient<T>(device, logits.data<T>(), targets.data<int32_t>(),
                                           losses.data<float>(), {context.loss_gradient, 0}, shape);
      }
    });
    Input(logits).add(context, logits.value());
    return Variable(std::move(losses));
  }
  on_device(context.stream, work, logits.dtype(), [&]<class T>(auto device) {
    kernels::cross_entropy(device, logits.data<T>(), targets.data<int32_t>(),
                           losses.data<Wide<T>>(), shape);
  });
  auto op = std::make_unique<CrossEntropyOp>();
  op->logits = logits.value();
  op->targets = targets;
  op->shape = shape;
  return context.record(std::move(losses), std::move(op), {logits});
}

Tensor count_correct(Context& context, const Tensor& logits, const Tensor& targets,
                     std::optional<int64_t> classes) {
  const kernels::LogitRows shape = shape_of(logits, targets, classes);
  Tensor result = context.activation({1}, DType::kI64);
  on_device(context.stream, touching(logits, targets), logits.dtype(), [&]<class T>(auto device) {
    kernels::count_correct(device, logits.data<T>(), targets.data<int32_t>(), shape,
                           result.data<int64_t>());
  });
  return result;
}

}  // namespace tandem
