// The frequencies of rotary positions.
#pragma once

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

}  // namespace tandem
