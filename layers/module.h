// What a model is to the rest of Tandem: blocks of parameters in forward order, and a forward pass.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/autograd/block.h"
#include "src/autograd/context.h"
#include "src/core/dispatch.h"

namespace tandem {

using ParameterVisitor = std::function<void(Parameter&)>;

class Model {
 public:
  virtual ~Model() = default;
  // Blocks in forward order; the position is the BlockId that forward() passes to the gate. A
  // parameter that several blocks use is listed with the first of them.
  virtual std::vector<BlockParameters> blocks() = 0;
  // What the model observes while training (BatchNorm). In forward order.
  virtual std::vector<RunningStatistics*> statistics() { return {}; }
  // input: tokens i32 [B, T], or images of the compute dtype [B, H, W, C]. Returns logits [targets,
  // classes].
  virtual Variable forward(Context& context, Gate& gate, const Tensor& input) = 0;
  // Floating-point operations of forward and backward for one sample (a multiply-add counts two);
  // the model's own arithmetic, without recomputation (Chowdhery et al. 2022, appendix B).
  virtual double flops_per_sample() const = 0;
};

// All parameters, in forward order.
inline std::vector<Parameter*> parameters_of(Model& model) {
  std::vector<Parameter*> all;
  for (const BlockParameters& block : model.blocks()) {
    all.insert(all.end(), block.parameters.begin(), block.parameters.end());
  }
  return all;
}

}  // namespace tandem
