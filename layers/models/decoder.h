// Generates with a language model, one token of each sequence at a time.
#pragma once

#include <cstdint>
#include <span>

#include "src/device/tensor.h"

namespace tandem {

// Uses the parameters of its model, which must outlive it and hold their values. Generates S
// sequences of one length side by side. Not for training: nothing is recorded for backward, and
// dropout is off.
//
// A sequence has at most `context` positions. When it is full, the window slides: the last context
// / 2 tokens (at least one) are kept and read again as a sequence that starts at position 0.
// Generation continues from there.
//
// Ranks that cut the model call it alike, and get the same logits.
//
// Logits are [S, columns], of the type of the parameters, on the model's device; the first `vocab`
// of the columns are the vocabulary.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Starts new sequences, all with these tokens (at least one). If there are more than `context`,
  // only the last `context` are used. Returns the logits of the tokens after the last one. Throws
  // Error(kData) for a token outside the vocabulary.
  virtual Tensor prefill(std::span<const int32_t> tokens) = 0;
  // Appends tokens [S], one to each sequence. Returns the logits of the tokens after them.
  virtual Tensor step(std::span<const int32_t> tokens) = 0;
  // The number of positions in the window.
  virtual int64_t length() const = 0;
};

}  // namespace tandem
