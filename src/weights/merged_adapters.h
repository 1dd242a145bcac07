// A model with its adapters added to its weights.
#pragma once

#include <map>
#include <string>

#include "layers/models/transformer.h"
#include "src/device/slab.h"

namespace tandem {

// Serves the weights of a model without adapters: W + (alpha / r) B A, in f32. A tensor with an
// adapter can only be read whole.
class MergedAdapters final : public TensorSource {
 public:
  // `weights` has the tensors of `model`, which has adapters. Both must outlive this.
  MergedAdapters(const TensorSource& weights, Transformer& model);

  void require_tensor(const std::string& name, const Shape& shape) const override {
    weights_.require_tensor(name, shape);
  }
  void read(const Slab& slab) const override;
  std::string home_of(const std::string& name) const override { return weights_.home_of(name); }

 private:
  struct Adapter {
    Piece a, b;
    int64_t first = 0;  // row of B that belongs to the first row of the tensor
  };
  void add(const Adapter& adapter, const Tensor& weight) const;

  const TensorSource& weights_;
  double scale_;
  std::map<std::string, Adapter> adapters_;  // by "param/NAME" of the tensor that they change
};

}  // namespace tandem
