// The unit in which checkpoints are written and read: contiguous elements of a slice of a named
// logical tensor.
#pragma once

#include <string>

#include "src/core/slice.h"
#include "src/device/tensor.h"

namespace tandem {

struct Slab {
  std::string name;    // "param/blocks.0.attn.q.weight", "optim/m/...", "stat/..."
  Slice slice;         // of the logical tensor
  int64_t offset = 0;  // of data's first element in the slice
  Tensor data;         // flat; elements [offset, offset + data.elements()) of the slice

  Range range() const { return {offset, offset + data.elements()}; }
};

// Where slabs are read from: a checkpoint, or another program's files. Tensors have the names that
// checkpoints use. Functions throw Error(kData).
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // Throws unless there is a tensor `name` of shape `shape`.
  virtual void require_tensor(const std::string& name, const Shape& shape) const = 0;
  // Fills slab.data (f32, host memory). Throws when require_tensor() does, and when an element is
  // missing.
  virtual void read(const Slab& slab) const = 0;
  // The folder that holds the tensor.
  virtual std::string home_of(const std::string& name) const = 0;
};

}  // namespace tandem
