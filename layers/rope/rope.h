// Rotary position embedding (Su et al. 2021, arXiv:2104.09864). Element i of a head is paired with
// element i + D / 2 (the "rotate half" order of GPT-NeoX and Llama).
#pragma once

#include "layers/attention/attention.h"
#include "layers/rope/rope_frequencies.h"

namespace tandem {

// Rotates the queries and keys of qkv [B, T, layout.row()] by the angles of context.positions, or
// of 0, 1, ...; values are not changed. The head width must be even.
// If no one else holds qkv's memory, the result reuses it.
Variable rope(Context& context, Variable qkv, const HeadLayout& layout,
              const RopeFrequencies& frequencies = {});

namespace kernels {

// What is rotated, and by how much.
struct Rotation : AttentionSizes {
  RopeFrequencies frequencies;
  const int32_t* positions = nullptr;  // [batch, length]; null: 0, 1, ... in each sample
  int64_t turned_heads() const { return heads + kv_heads; }  // the first ones of a row
};

// y = x, with queries and keys rotated by direction * angle. direction is 1, or -1 for the inverse.
// x and y are [batch, length, row]; y may be x. Angles are computed in f64.
template <class T>
void rope_rotate(Cuda, const Rotation& of, const T* x, T* y, Wide<T> direction);

}  // namespace kernels
}  // namespace tandem
