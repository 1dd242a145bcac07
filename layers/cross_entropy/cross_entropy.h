// Softmax and negative log-likelihood in one layer:
//   loss[n] = log(sum over j of exp(logits[n, j])) - logits[n, targets[n]].
#pragma once

#include <optional>

#include "src/autograd/context.h"
#include "src/core/ignore_target.h"
#include "src/device/dispatch.h"

namespace tandem {

// logits [N, V], targets i32 [N]; returns losses [N] in f32 (f64 for f64 logits). The first
// `classes` columns are classes, by default all. Columns after them may hold anything; their
// gradient is zero. On the CPU throws Error(kData) for a target outside [0, classes), unless it is
// kIgnoreTarget. For a GPU the host must check.
//
// The gradient (softmax - one hot) * dy is written into the memory of the logits, and that is
// passed on as their gradient: in the backward pass, or, if the context has a loss_gradient, at
// once, in the pass that computes the losses. Then the losses have no gradient, and Tape::backward
// starts from the logits. So nothing else may read the logits' values afterwards.
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

// On the host. Throws Error(kData) for a target that is neither in [0, classes) nor kIgnoreTarget.
void require_targets(const int32_t* targets, int64_t rows, int64_t classes);

// What the gradient of row n is multiplied by: values[n * stride], in device memory.
template <class W>
struct RowScale {
  const W* values;
  int64_t stride;  // 1, or 0: the same number for all rows
};

// losses [rows]; for a row with a NaN, NaN. On the CPU throws Error(kData) for a bad target.
template <class T>
void cross_entropy(Cuda, const T* logits, const int32_t* targets, Wide<T>* losses, LogitRows shape);

// The same, unless `losses` is null, and replaces the logits by their gradient, zero in the columns
// after the classes. A GPU reads and writes each logit once if a row of classes fits shared memory
// (162 KiB on sm_80, 98 KiB on sm_89), and reads the next row while it computes; longer rows are
// read twice.
template <class T>
void cross_entropy_gradient(Cuda, T* logits, const int32_t* targets, Wide<T>* losses,
                            RowScale<Wide<T>> scale, LogitRows shape);

// Writes the number of correct rows to *result.
template <class T>
void count_correct(Cuda, const T* logits, const int32_t* targets, LogitRows shape, int64_t* result);

}  // namespace kernels
}  // namespace tandem
