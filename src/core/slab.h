// The checkpoint's only vocabulary: a contiguous piece of a named logical tensor.
#pragma once

#include <functional>
#include <string>

#include "src/core/tensor.h"

namespace tandem {

struct Slab {
  std::string name;    // "param/blocks.0.attn.qkv.weight", "optim/m/...", "stat/..."
  Shape shape;         // of the whole logical tensor
  int64_t offset = 0;  // of the first element of `data` in it
  Tensor data;         // f32, flat; the elements [offset, offset + data.elements())
};

using SlabVisitor = std::function<void(const Slab&)>;

}  // namespace tandem
