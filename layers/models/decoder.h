// Generates with a language model one token at a time.
#pragma once

#include <cstdint>
#include <span>

#include "src/device/tensor.h"

namespace tandem {

// Uses the parameters of its model, which must outlive it and hold their values. Generates one
// sequence at a time. Not for training: nothing is recorded for backward, and dropout is off.
//
// A sequence has at most `context` positions. When it is full, the window slides: the last context
// / 2 tokens (at least one) are kept and read again as a sequence that starts at position 0.
// Generation continues from there.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Starts a new sequence with these tokens (at least one). If there are more than `context`, only
  // the last `context` are used. Returns the logits [vocab] of the token after the last one. Throws
  // Error(kData) for a token outside the vocabulary.
  virtual Tensor prefill(std::span<const int32_t> tokens) = 0;
  // Appends one token. Returns the logits [vocab] of the token after it.
  virtual Tensor step(int32_t token) = 0;
  // The number of positions in the window.
  virtual int64_t length() const = 0;
};

}  // namespace tandem
