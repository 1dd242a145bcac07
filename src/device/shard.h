// What an optimizer sees of the parameters: flat f32 spans that only it updates. The optimizer
// knows neither names nor ranks.
#pragma once

#include "src/device/tensor.h"

namespace tandem {

struct Shard {
  Tensor value;  // f32 [n]: master weights
  Tensor grad;   // f32 [n]: gradient of the mean loss of the global batch, times the loss scale
  bool decay = false;  // weight decay applies to all of it
  Tensor working{};    // bf16 or fp16 [n]: the rounded value that layers compute with; empty in f32
};

}  // namespace tandem
