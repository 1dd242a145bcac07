// Softmax and negative log-likelihood in one layer:
//   loss[n] = log(sum over j of exp(logits[n, j])) - logits[n, targets[n]].
#pragma once

#include <optional>

#include "layers/module.h"
#include "src/core/ignore_target.h"

namespace tandem {

// logits [N, V], targets i32 [N]; returns losses [N] in f32 (f64 for f64 logits). The first
// `classes` columns are classes, by default all. Columns after them may hold anything; their
// gradient is zero. On the CPU throws Error(kData) for a target outside [0, classes), unless it is
// kIgnoreTarget. For a GPU the host must check.
//
// Backward writes (softmax - one hot) * dy into the memory of the logits and passes that on as
// their gradient. So nothing else may read the logits' values once backward has begun.
Variable cross_entropy(Context& context, const Variable& logits, const Tensor& targets,
                       std::optional<int64_t> classes = {});

// The number of rows whose largest logit is the target's; of equal logits the lowest index wins.
// Ignored rows do not count. Returns i64 [1].
Tensor count_correct(Context& context, const Tensor& logits, const Tensor& targets,
                     std::optional<int64_t> classes = {});

namespace kernels {

// Rows of logits: `classes` logits, followed by padding up to `width` elements.
struct LogitRows {
  int64_t rows, classes, width;
};

// log_sum [rows] is saved for backward. For a row with a NaN, log_sum and the loss are NaN. On the
// CPU throws Error(kData) for a bad target.
template <class T>
void cross_entropy_forward(Cpu, const T* logits, const int32_t* targets, Wide<T>* losses,
                           Wide<T>* log_sum, LogitRows shape);
template <class T>
void cross_entropy_forward(Cuda, const T* logits, const int32_t* targets, Wide<T>* losses,
                           Wide<T>* log_sum, LogitRows shape);

// Replaces logits[n, j] by (exp(logits[n, j] - log_sum[n]) - [j == targets[n]]) * dlosses[n], and
// by zero in the columns after the classes.
template <class T>
void cross_entropy_backward(Cpu, const Wide<T>* dlosses, const int32_t* targets,
                            const Wide<T>* log_sum, T* logits, LogitRows shape);
template <class T>
void cross_entropy_backward(Cuda, const Wide<T>* dlosses, const int32_t* targets,
                            const Wide<T>* log_sum, T* logits, LogitRows shape);

// Writes the number of correct rows to *result.
template <class T>
void count_correct(Cpu, const T* logits, const int32_t* targets, LogitRows shape, int64_t* result);
template <class T>
void count_correct(Cuda, const T* logits, const int32_t* targets, LogitRows shape, int64_t* result);

}  // namespace kernels
}  // namespace tandem
