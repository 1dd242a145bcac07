// Random numbers of many counters at once, on the CPU.
#pragma once

#include "src/core/rng.h"

namespace tandem {

// philox() of kCount counters (c[0][i], ..., c[3][i]), which become their words. Works round by
// round, so that each round is a loop over the counters, which vectorises.
template <int kCount>
void philox(PhiloxKey key, uint32_t (&c)[4][kCount]) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
#pragma omp simd
    for (int i = 0; i < kCount; ++i) {
      philox_round(key, c[0][i], c[1][i], c[2][i], c[3][i]);
    }
    key = philox_next_key(key);
  }
}

}  // namespace tandem
