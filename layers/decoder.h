// Generates with a transformer one token at a time: keys and values of earlier positions are kept,
// so that a step costs one position.
#pragma once

#include "layers/transformer.h"

namespace tandem {

// Shares the parameters of the model, which must outlive it and hold values. One sequence at a
// time. Not for training: nothing is remembered for backward, and dropout is off.
//
// Positions are at most the model's context. When it is full the window slides: the last context /
// 2 tokens (at least one) are kept, read again as a sequence that starts at position 0, and
// generation goes on behind them.
class Decoder {
 public:
  Decoder(Transformer& model, Gate& gate, Stream& stream, Memory& memory);

  // Starts a new sequence with these tokens, at least one; of more than the context the last ones
  // count. Returns logits [vocab] behind the last token. A token outside the vocabulary is
  // Error(kData).
  Tensor prefill(std::span<const int32_t> tokens);
  // Appends one token; returns logits [vocab] behind it.
  Tensor step(int32_t token);

  // Positions held.
  int64_t length() const { return static_cast<int64_t>(window_.size()); }

 private:
  Tensor run(std::span<const int32_t> tokens);

  Transformer& model_;
  Gate& gate_;
  Context context_;
  std::vector<KeyValueCache> caches_;  // one for each layer
  std::vector<int32_t> window_;        // the tokens whose keys and values are held
};

}  // namespace tandem
