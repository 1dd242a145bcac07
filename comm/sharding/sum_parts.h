// Adds equal chunks of an array of 16-bit numbers: the chunks that a rank received from all ranks.
#pragma once

#include "src/device/dispatch.h"

namespace tandem::kernels {

// to[i] = from[0, i] + from[1, i] + ..., added in f32 in this order, then rounded to To.
// from [parts, n]; to [n], apart from `from`. From: bf16; To: bf16 or f32.
template <class From, class To>
void sum_parts(Cpu, int64_t parts, int64_t n, const From* from, To* to);
template <class From, class To>
void sum_parts(Cuda, int64_t parts, int64_t n, const From* from, To* to);

}  // namespace tandem::kernels
