// Generates with a language model: sequences in slots, which begin and end independently.
#pragma once

#include <cstdint>
#include <span>

#include "src/device/tensor.h"

namespace tandem {

// A token that continues the sequence in a slot.
struct DecoderRow {
  int32_t slot = 0, token = 0;
  bool is_asked = true;  // for the logits of the token after it
};

// Uses the parameters of its model, which must outlive it and hold their values. Not for training:
// nothing is recorded for backward, and dropout is off.
//
// A sequence has at most context() positions. When it is full, its window slides before the next
// token: the last context() / 2 - 1 tokens are kept and read again, as a sequence that starts at
// position 0.
//
// On the CPU the logits of a row depend, to the bit, on the tokens of its own sequence alone, not
// on how they were divided into steps, nor on other slots. Ranks that cut the model call it alike,
// and get the same logits.
class Decoder {
 public:
  static constexpr int64_t kChunk = 256;  // tokens of a prompt that are read together

  virtual ~Decoder() = default;
  virtual int64_t slots() const = 0;
  virtual int64_t context() const = 0;
  // Appends the rows' tokens to their sequences; those of one slot are in their order and fit its
  // window. Returns the logits [asked rows, columns] in the order of rows, of the type of the
  // parameters, on the model's device; the first `vocab` of the columns are the vocabulary. Throws
  // Error(kData) for a token outside the vocabulary.
  virtual Tensor step(std::span<const DecoderRow> rows) = 0;
  // The slot's next token begins a sequence.
  virtual void clear(int32_t slot) = 0;
  virtual int64_t length(int32_t slot) const = 0;  // positions in its window

  // Begins a sequence with the last context() of these tokens (at least one), a chunk a step.
  // Returns the logits [1, columns] of the token after them.
  Tensor prefill(int32_t slot, std::span<const int32_t> tokens);
};

}  // namespace tandem
