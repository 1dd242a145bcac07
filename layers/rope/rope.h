// Rotary position embedding (Su et al. 2021, arXiv:2104.09864). Element i of a head is paired with
// element i + D / 2 (the "rotate half" order of GPT-NeoX and Llama).
#pragma once

#include "layers/attention/attention.h"
#include "src/core/host_device.h"

namespace tandem {

// By how much the pairs of a head turn from one position to the next: theta^(-2 i / D) radians for
// pair i, scaled for contexts longer than those of pretraining.
struct RopeFrequencies {
  double theta = 10000;
  double factor = 1;  // divides frequencies; 1: none is scaled
  // Llama 3: a pair that makes `high` turns or more within the original context keeps its
  // frequency, one that makes `low` turns or fewer is divided by the factor, and those between are
  // interpolated. An original context of 0 divides them all ("linear").
  double original_context = 0;
  double low_freq_factor = 1, high_freq_factor = 4;

  // `frequency` is in radians. Exactly `frequency` if the factor is 1.
  TANDEM_HOST_DEVICE double scaled(double frequency) const {
    if (factor == 1) {
      return frequency;
    }
    const double turns = original_context * frequency * 0.15915494309189535;  // 1 / (2 pi)
    const double share = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
    const double kept = share < 0 ? 0 : share > 1 ? 1 : share;
    return frequency * ((1 - kept) / factor + kept);
  }
};

// Rotates the queries and keys of qkv [B, T, layout.row()] by the angles of positions
// first_position, first_position + 1, ...; values are not changed. The head width must be even. If
// no one else holds qkv's memory, the result reuses it.
Variable rope(Context& context, Variable qkv, const HeadLayout& layout, int64_t first_position = 0,
              const RopeFrequencies& frequencies = {});

namespace kernels {

// What is rotated, and by how much.
struct Rotation : AttentionSizes {
  int64_t first_position;
  RopeFrequencies frequencies;
  int64_t turned_heads() const { return heads + kv_heads; }  // the first ones of a row
};

// y = x, with queries and keys rotated by direction * angle. direction is 1, or -1 for the inverse.
// x and y are [batch, length, row]; y may be x. Angles are computed in f64.
template <class T>
void rope_rotate(Cuda, const Rotation& of, const T* x, T* y, Wide<T> direction);

}  // namespace kernels
}  // namespace tandem
