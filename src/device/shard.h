// What an optimizer sees of the parameters: flat f32 spans that only it updates. The optimizer
// knows neither names nor ranks.
#pragma once

#include <functional>

#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

struct Shard {
  Tensor value;  // f32 [n]: master weights
  Tensor grad;   // f32 [n]: gradient of the mean loss of the global batch, times the loss scale
  bool decay = false;  // weight decay applies to all of it
  Tensor working{};    // bf16 or fp16 [n]: the rounded value that layers compute with; empty in f32
  bool matrix = false;  // it is a part of matrices, which may begin and end on other ranks
};

// The matrices of which all shards with `matrix` are parts, for an optimizer that needs them whole.
class Matrices {
 public:
  struct Function {
    DType dtype;  // f32 or bf16: in which matrices are rounded, sent and computed
    // Replaces a matrix [rows, columns] of dtype. The result must depend on its elements alone.
    std::function<void(Stream& stream, const Tensor& matrix)> apply;
    double (*factor)(int64_t rows, int64_t columns);  // of the result
  };
  virtual ~Matrices() = default;
  // Collective, enqueued. Each matrix M of the gradients becomes factor * apply(M), in f32. With
  // sharded state one rank computes it for all.
  virtual void transform(Stream& stream, const Function& function) = 0;
};

}  // namespace tandem
