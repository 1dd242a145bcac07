// Generates with a language model one token at a time.
#pragma once

#include <cstdint>
#include <span>

#include "src/device/tensor.h"

namespace tandem {

// Shares the parameters of its model, which must outlive it and hold values. One sequence at a
// time. Not for training: nothing is remembered for backward, and dropout is off.
//
// Positions are at most the model's context. When it is full the window slides: the last context /
// 2 tokens (at least one) are kept, read again as a sequence that starts at position 0, and
// generation goes on from there.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Starts a new sequence with these tokens, at least one; of more than the context the last ones
  // count. Returns logits [vocab] of what follows the last token. A token outside the vocabulary is
  // Error(kData).
  virtual Tensor prefill(std::span<const int32_t> tokens) = 0;
  // Appends one token; returns logits [vocab] of what follows it.
  virtual Tensor step(int32_t token) = 0;
  // Positions held.
  virtual int64_t length() const = 0;
};

}  // namespace tandem
