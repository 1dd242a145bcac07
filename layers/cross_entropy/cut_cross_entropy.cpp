#include "layers/cross_entropy/cut_cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "layers/exchange/exchange.h"
#include "src/core/math.h"
#include "src/device/copy.h"
#include "src/device/ranks/collectives.h"
#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

namespace {

// What is subtracted from exponents: -infinity minus itself is NaN.
template <class W>
W base_of(W largest) {
  return std::isinf(largest) && largest < 0 ? W(0) : largest;
}

}  // namespace

template <class T>
void logit_parts(Cpu, const T* logits, const int32_t* targets, LogitPart<Wide<T>>* parts,
                 LogitSlice slice) {
  const int64_t rows = slice.rows, classes = slice.classes;
  require_targets(targets, rows, slice.all);
#pragma omp parallel for schedule(static) if (rows * classes >= kParallelElements)
  for (int64_t n = 0; n < rows; ++n) {
    const T* row = logits + n * slice.width;
    Wide<T> largest = row[0];
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < classes; ++j) {
      const Wide<T> value = row[j];
      largest = value > largest ? value : largest;
    }
    const Wide<T> base = base_of(largest);
    Wide<T> sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < classes; ++j) {
      sum += math::exp(Wide<T>(row[j]) - base);
    }
    const int64_t at = targets[n] - slice.first;
    parts[n] = {largest, sum, at >= 0 && at < classes ? Wide<T>(row[at]) : Wide<T>(0)};
  }
}

template <class W>
void join_logit_parts(Cpu device, const LogitPart<W>* parts, int64_t ranks, int64_t rows,
                      const int32_t* targets, W* log_sums, W* losses) {
  map(device, rows, [=](int64_t n) {
    W largest = parts[n].largest;
    for (int64_t r = 1; r < ranks; ++r) {
      largest = std::max(largest, parts[r * rows + n].largest);
    }
    const W base = base_of(largest);
    W sum = 0, target = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      const LogitPart<W>& part = parts[r * rows + n];
      sum += part.sum * std::exp(part.largest - base);
      target += part.target;
    }
    log_sums[n] = base + std::log(sum);
    if (losses) {
      losses[n] = targets[n] == kIgnoreTarget ? W(0) : log_sums[n] - target;
    }
  });
}

template <class T>
void cut_cross_entropy_gradient(Cpu, T* logits, const int32_t* targets, const Wide<T>* log_sums,
                                RowScale<Wide<T>> scale, LogitSlice slice) {
  const int64_t rows = slice.rows, classes = slice.classes, width = slice.width;
#pragma omp parallel for schedule(static) if (rows * classes >= kParallelElements)
  for (int64_t n = 0; n < rows; ++n) {
    T* row = logits + n * width;
    if (targets[n] == kIgnoreTarget) {
      std::fill_n(row, width, T(0));
      continue;
    }
    const Wide<T> by = scale.values[n * scale.stride], log_sum = log_sums[n];
    const int64_t at = targets[n] - slice.first;
    const bool is_here = at >= 0 && at < classes;
    const Wide<T> logit = is_here ? Wide<T>(row[at]) : Wide<T>(0);
#pragma omp simd
    for (int64_t j = 0; j < classes; ++j) {
      row[j] = T(math::exp(Wide<T>(row[j]) - log_sum) * by);
    }
    if (is_here) {
      row[at] = T(math::exp(logit - log_sum) * by - by);
    }
    std::fill(row + classes, row + width, T(0));
  }
}

template <class T>
void cut_count_correct(Cpu, const T* logits, const int32_t* targets,
                       const LogitPart<Wide<T>>* parts, int64_t ranks, int64_t rank,
                       LogitSlice slice, int64_t* result) {
  const int64_t rows = slice.rows, classes = slice.classes;
  int64_t correct = 0;
#pragma omp parallel for schedule(static) reduction(+ : correct) if (rows * classes >= \
                                                                     kParallelElements)
  for (int64_t n = 0; n < rows; ++n) {
    const T* row = logits + n * slice.width;
    const int64_t at = targets[n] - slice.first;
    bool is_largest = at >= 0 && at < classes && std::max_element(row, row + classes) - row == at;
    for (int64_t r = 0; r < ranks && is_largest; ++r) {
      const Wide<T> other = parts[r * rows + n].largest;
      is_largest = r < rank ? other < Wide<T>(row[at]) : other <= Wide<T>(row[at]);
    }
    correct += is_largest;
  }
  *result = correct;
}

}  // namespace kernels

namespace {

kernels::LogitSlice slice_of(const Tensor& logits, const Tensor& targets,
                             const ClassesHere& classes) {
  const kernels::LogitSlice slice{
      {.rows = logits.shape()[0], .classes = classes.here.count(), .width = logits.shape()[-1]},
      classes.here.begin,
      classes.all};
  require(logits.shape().rank() == 2 && targets.elements() == slice.rows && slice.classes > 0 &&
              slice.classes <= slice.width,
          "cut_cross_entropy: logits ", logits.shape(), ", targets ", targets.shape(), ", ",
          slice.classes, " classes here");
  return slice;
}

template <class W>
kernels::LogitPart<W>* data_of(const Tensor& parts) {
  static_assert(sizeof(kernels::LogitPart<W>) == 3 * sizeof(W));
  return reinterpret_cast<kernels::LogitPart<W>*>(parts.data<W>());
}

// A LogitPart for each row of each rank: [ranks * rows, 3].
Tensor parts_of_all(Context& context, const Tensor& logits, const Tensor& targets,
                    const kernels::LogitSlice& slice) {
  const Tensor parts = context.workspace({slice.rows, 3}, wide_of(logits.dtype()));
  on_device(context.stream, touching(logits, targets, parts), logits.dtype(),
            [&]<class T>(auto device) {
              kernels::logit_parts(device, logits.data<T>(), targets.data<int32_t>(),
                                   data_of<Wide<T>>(parts), slice);
            });
  return RowsInFlight::gather(context, parts).take(context);
}

struct CutCrossEntropyOp final : Op {
  Tensor logits;    // [N, width]; backward overwrites it with its gradient
  Tensor targets;   // i32 [N]
  Tensor log_sums;  // [N]
  kernels::LogitSlice slice;

  std::string_view name() const override { return "cut_cross_entropy"; }
  void backward(Context& context, Tensor& dy) override {
    on_device(context.stream, touching(logits, logits, targets, log_sums, dy), logits.dtype(),
              [&]<class T>(auto device) {
                kernels::cut_cross_entropy_gradient<T>(
                    device, logits.data<T>(), targets.data<int32_t>(), log_sums.data<Wide<T>>(),
                    {dy.data<Wide<T>>(), 1}, slice);
              });
    input(0).add(context, logits);
  }
};

Tensor count_correct_here(Context& context, const Tensor& logits, const Tensor& targets,
                          const Tensor& parts, const kernels::LogitSlice& slice) {
  Tensor result = context.activation({1}, DType::kI64);
  on_device(context.stream, touching(logits, targets, parts), logits.dtype(),
            [&]<class T>(auto device) {
              kernels::cut_count_correct(device, logits.data<T>(), targets.data<int32_t>(),
                                         data_of<Wide<T>>(parts), context.tensor->size(),
                                         context.tensor->rank(), slice, result.data<int64_t>());
            });
  return result;
}

}  // namespace

CutLoss cut_cross_entropy(Context& context, const Variable& logits, const Tensor& targets,
                          const ClassesHere& classes) {
  auto op = std::make_unique<CutCrossEntropyOp>();
  op->slice = slice_of(logits.value(), targets, classes);
  const int64_t rows = op->slice.rows, ranks = context.tensor->size();
  const DType wide = wide_of(logits.dtype());
  const Tensor parts = parts_of_all(context, logits.value(), targets, op->slice);
  op->log_sums = context.activation({rows}, wide);
  Tensor losses = context.activation({rows}, wide);
  const bool is_first = context.tensor->rank() == 0;
  on_device(context.stream, touching(parts, targets, op->log_sums, losses), wide,
            [&]<class W>(auto device) {
              if constexpr (std::is_same_v<W, Wide<W>>) {
                kernels::join_logit_parts(device, data_of<W>(parts), ranks, rows,
                                          targets.data<int32_t>(), op->log_sums.data<W>(),
                                          is_first ? losses.data<W>() : nullptr);
              }
            });
  if (!is_first) {
    zero(context.stream, losses);
  }
  Tensor correct;
  if (!context.training) {
    correct = count_correct_here(context, logits.value(), targets, parts, op->slice);
  }
  if (context.loss_gradient && logits.wanted() && context.saves()) {
    on_device(context.stream, touching(logits.value(), logits.value(), targets, op->log_sums),
              logits.dtype(), [&]<class T>(auto device) {
                if constexpr (std::is_same_v<T, double>) {
                  fail(ExitCode::kInternal,
                       "cut_cross_entropy: a loss_gradient is f32, the logits are f64");
                } else {
                  kernels::cut_cross_entropy_gradient<T>(
                      device, logits.data<T>(), targets.data<int32_t>(), op->log_sums.data<float>(),
                      {context.loss_gradient, 0}, op->slice);
                }
              });
    Input(logits).add(context, logits.value());
    return {Variable(std::move(losses)), std::move(correct)};
  }
  op->logits = logits.value();
  op->targets = targets;
  return {context.record(std::move(losses), std::move(op), {logits}), std::move(correct)};
}

}  // namespace tandem
