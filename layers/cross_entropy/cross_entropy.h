// Softmax and negative log-likelihood in one: loss[n] = log(sum over j of exp(logits[n, j])) -
// logits[n, targets[n]].
#pragma once

#include <optional>

#include "layers/module.h"
#include "src/core/ignore_target.h"

namespace tandem {

// logits [N, V], targets i32 [N]; returns losses [N] in f32 (f64 for f64 logits). The first
// `classes` columns count, by default all; those after them may hold anything, and their gradient
// is zero. A target outside [0, classes) other than kIgnoreTarget is Error(kData); on a GPU the
// host has to check that.
//
// Backward writes (softmax - one hot) * dy into the memory of the logits and hands that on as their
// gradient: nothing else may use the logits' values once backward has begun.
Variable cross_entropy(Context& context, const Variable& logits, const Tensor& targets,
                       std::optional<int64_t> classes = {});

// Rows whose largest logit is the target's, the lowest index winning ties. Ignored rows do not
// count. Returns i64 [1].
Tensor count_correct(Context& context, const Tensor& logits, const Tensor& targets,
                     std::optional<int64_t> classes = {});

namespace kernels {

// Rows of logits: the first `classes` elements of `width` stored ones.
struct LogitRows {
  int64_t rows, classes, width;
};

// log_sum [rows] is saved for backward; a row with NaN has NaN there and as its loss. On the CPU
// throws Error(kData) for a bad target.
template <class T>
void cross_entropy_forward(Cpu, const T* logits, const int32_t* targets, Wide<T>* losses,
                           Wide<T>* log_sum, LogitRows shape);
template <class T>
void cross_entropy_forward(Cuda, const T* logits, const int32_t* targets, Wide<T>* losses,
                           Wide<T>* log_sum, LogitRows shape);

// logits[n, j] becomes (exp(logits[n, j] - log_sum[n]) - [j == targets[n]]) * dlosses[n]; zero in
// the columns after the classes.
template <class T>
void cross_entropy_backward(Cpu, const Wide<T>* dlosses, const int32_t* targets,
                            const Wide<T>* log_sum, T* logits, LogitRows shape);
template <class T>
void cross_entropy_backward(Cuda, const Wide<T>* dlosses, const int32_t* targets,
                            const Wide<T>* log_sum, T* logits, LogitRows shape);

// Writes the number of rows to *result.
template <class T>
void count_correct(Cpu, const T* logits, const int32_t* targets, LogitRows shape, int64_t* result);
template <class T>
void count_correct(Cuda, const T* logits, const int32_t* targets, LogitRows shape, int64_t* result);

}  // namespace kernels
}  // namespace tandem
