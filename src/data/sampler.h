// The order in which training samples are visited: a pure function of (seed, epoch, place in the
// epoch).
//
// Responsible for the same order at every number of ranks, and for random access, so that a run
// resumes from a step number alone. The epochs form one endless sequence. Sample i of the global
// batch of step s is at position s * global_batch + i in it; an epoch may end inside a batch.
#pragma once

#include <cstdint>

#include "src/core/rng.h"

namespace tandem {

// Streams of random numbers within RandomUse::kSampleOrder.
inline constexpr uint32_t kPermutationStream = 0;
inline constexpr uint32_t kOffsetStream = 1;
inline constexpr uint32_t kPoolStream = 2;

// Where a pseudo-random permutation of [0, size) puts `index`. It is computed, not stored: a
// Feistel network on the next power of two, applied again until the result is below `size` (Black
// and Rogaway 2002, "Ciphers with arbitrary finite domains").
int64_t permuted(int64_t index, int64_t size, PhiloxKey key);

// One visit of a sample.
struct Sample {
  int64_t epoch = 0;
  int64_t index = 0;  // which sample, in [0, samples_per_epoch)
};

// The visit at `position` of the endless sequence; samples_per_epoch > 0.
Sample sample_at(uint64_t seed, int64_t samples_per_epoch, int64_t position);

// How many windows one epoch cuts from a stream of `tokens` tokens. A window has `context` tokens,
// and one more as its last target. The number is the same for every epoch, and 0 when not even one
// window fits. The first window begins at an offset that changes from epoch to epoch, so an epoch
// leaves out up to 2 * context - 1 tokens at the two ends.
int64_t training_windows(int64_t tokens, int64_t context);

// First token of window `index` in `epoch`; the epoch's offset is in [0, context).
int64_t training_window_start(uint64_t seed, int64_t epoch, int64_t index, int64_t tokens,
                              int64_t context);

// How many windows cover a validation stream of `tokens` tokens. Window w begins at w * context.
// The last window may be cut short, so that every token except the first is predicted once.
int64_t validation_windows(int64_t tokens, int64_t context);

}  // namespace tandem
