// The layer of cross_entropy.h for classes that are cut over the ranks of context.tensor: each rank
// has the logits of some classes for every row. Ranks exchange three numbers a row, once: the
// largest logit, the sum of exponentials, and the logit of the target. They are combined in rank
// order, so that all ranks compute the same.
#pragma once

#include "layers/cross_entropy/cross_entropy.h"

namespace tandem {

// The first columns of a rank's logits are these classes, of so many.
struct ClassesHere {
  Range here;
  int64_t all;
};

// As cross_entropy(). logits [N, width], with classes of this rank; targets [N], of all classes.
// The losses are those of rank 0; those of other ranks are 0, so that losses add up over ranks.
Variable cut_cross_entropy(Context& context, const Variable& logits, const Tensor& targets,
                           const ClassesHere& classes);

// As count_correct(), for the rows whose target is a class of this rank.
Tensor cut_count_correct(Context& context, const Tensor& logits, const Tensor& targets,
                         const ClassesHere& classes);

namespace kernels {

// What a rank says of a row.
template <class W>
struct LogitPart {
  W largest, sum, target;  // sum of exp(logit - largest); 0 if the target is not here
};

// Logits of the classes [first, first + shape.classes) of each row.
struct LogitSlice : LogitRows {
  int64_t first;
};

// parts [rows]
template <class T>
void logit_parts(Cuda, const T* logits, const int32_t* targets, LogitPart<Wide<T>>* parts,
                 LogitSlice slice);

// log_sums [rows] and, unless null, losses [rows], from the parts of all ranks, [ranks, rows].
// W is float, or double on the CPU.
template <class W>
void join_logit_parts(Cuda, const LogitPart<W>* parts, int64_t ranks, int64_t rows,
                      const int32_t* targets, W* log_sums, W* losses);

// Replaces the logits by their gradient, zero in the columns after the classes.
template <class T>
void cut_cross_entropy_gradient(Cuda, T* logits, const int32_t* targets, const Wide<T>* log_sums,
                                RowScale<Wide<T>> scale, LogitSlice slice);

// *result = how many rows have their target here, and their largest logit there.
template <class T>
void cut_count_correct(Cuda, const T* logits, const int32_t* targets,
                       const LogitPart<Wide<T>>* parts, int64_t ranks, int64_t rank,
                       LogitSlice slice, int64_t* result);

}  // namespace kernels
}  // namespace tandem
