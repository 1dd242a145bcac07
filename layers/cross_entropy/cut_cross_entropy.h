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

// Both add up over ranks.
struct CutLoss {
  Variable losses;   // [N], as those of cross_entropy(), on rank 0; zeros on other ranks
  Tensor correct{};  // i64 [1], of the rows whose target is here (count_correct); empty in training
};

// logits [N, width] of the classes here; targets [N] of all classes. The logits' gradient is
// written as by cross_entropy(), and targets are checked as there.
CutLoss cut_cross_entropy(Context& context, const Variable& logits, const Tensor& targets,
                          const ClassesHere& classes);

namespace kernels {

// What a rank says of a row.
template <class W>
struct LogitPart {
  W largest, sum, target;  // sum of exp(logit - largest); 0 if the target is not here
};

// Logits of the classes [first, first + classes) of each row, among so many of all ranks.
struct LogitSlice : LogitRows {
  int64_t first, all;
};

// Writes parts [rows]. On the CPU throws Error(kData) for a bad target.
template <class T>
void logit_parts(Cuda, const T* logits, const int32_t* targets, LogitPart<Wide<T>>* parts,
                 LogitSlice slice);

// Writes log_sums [rows] and, unless null, losses [rows], from the parts of all ranks, [ranks,
// rows]. W is float, or double on the CPU.
template <class W>
void join_logit_parts(Cuda, const LogitPart<W>* parts, int64_t ranks, int64_t rows,
                      const int32_t* targets, W* log_sums, W* losses);

// Replaces the logits by their gradient, zero in the columns after the classes.
template <class T>
void cut_cross_entropy_gradient(Cuda, T* logits, const int32_t* targets, const Wide<T>* log_sums,
                                RowScale<Wide<T>> scale, LogitSlice slice);

// Writes to *result how many rows have their target here, and their largest logit there.
template <class T>
void cut_count_correct(Cuda, const T* logits, const int32_t* targets,
                       const LogitPart<Wide<T>>* parts, int64_t ranks, int64_t rank,
                       LogitSlice slice, int64_t* result);

}  // namespace kernels
}  // namespace tandem
