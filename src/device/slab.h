// The unit in which checkpoints are written and read: contiguous elements of a slice of a named
// logical tensor.
#pragma once

#include <string>

#include "src/core/slice.h"
#include "src/device/tensor.h"

namespace tandem {

struct Slab {
  std::string name;    // "param/blocks.0.attn.qkv.weight", "optim/m/...", "stat/..."
  Slice slice;         // of the logical tensor
  int64_t offset = 0;  // of data's first element in the slice
  Tensor data;         // flat; elements [offset, offset + data.elements()) of the slice

  Range range() const { return {offset, offset + data.elements()}; }
};

}  // namespace tandem
