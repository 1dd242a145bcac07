// Rotary position embedding (Su et al. 2021, arXiv:2104.09864) with base 10000. Element i of a head
// is paired with element i + D / 2 (the "rotate half" order of GPT-NeoX and Llama).
#pragma once

#include "layers/attention/attention.h"

namespace tandem {

// Rotates the queries and keys of qkv [B, T, layout.row()] by the angles of positions
// first_position, first_position + 1, ...; values are not changed. The head width must be even. If
// no one else holds qkv's memory, the result reuses it.
Variable rope(Context& context, Variable qkv, const HeadLayout& layout, int64_t first_position = 0);

namespace kernels {

inline constexpr double kRopeBase = 10000.0;

// y = x, with the first `heads` heads of each row rotated by direction * angle. direction is 1, or
// -1 for the inverse. x and y are [batch, length, row]; y may be x. Angles are computed in f64.
template <class T>
void rope_rotate(Cpu, const T* x, T* y, Wide<T> direction, int64_t first_position, int64_t batch,
                 int64_t length, int64_t row, int64_t heads, int64_t width);
template <class T>
void rope_rotate(Cuda, const T* x, T* y, Wide<T> direction, int64_t first_position, int64_t batch,
                 int64_t length, int64_t row, int64_t heads, int64_t width);

}  // namespace kernels
}  // namespace tandem
