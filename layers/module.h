// What a model is to the rest of Tandem: a list of blocks, and a loss.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "layers/models/decoder.h"
#include "src/autograd/block.h"
#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

using ParameterVisitor = std::function<void(Parameter&)>;

// The parameters of layers, in this order.
template <class... Layers>
std::vector<Parameter*> parameters_in(Layers&... layers) {
  std::vector<Parameter*> all;
  (layers.visit([&](Parameter& parameter) { all.push_back(&parameter); }), ...);
  return all;
}

// What a model makes of a batch.
struct Loss {
  Variable losses;   // [targets], f32 or f64: of each target, 0 for one that does not count
  Tensor correct{};  // i64 [1]: targets that the model takes for the likeliest; not in training
};

class Model {
 public:
  Model() = default;
  Model(const Model&) = delete;  // blocks refer to their model
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  // In forward order, the head last; the position is the BlockId.
  const std::vector<Block>& blocks() const { return blocks_; }
  // What the model observes while training (BatchNorm). In forward order.
  virtual std::vector<RunningStatistics*> statistics() { return {}; }
  // input: tokens i32 [B, T], or images of the compute dtype [B, H, W, C]. targets: i32.
  virtual Loss loss(Context& context, const Tensor& input, const Tensor& targets) = 0;
  // Floating-point operations of forward and backward for one sample (a multiply-add counts two);
  // the model's own arithmetic, without recomputation (Chowdhery et al. 2022, appendix B).
  virtual double flops_per_sample() const = 0;
  // Generates with this model, in a context without tape; null for a model that cannot.
  virtual std::unique_ptr<Decoder> decoder(const Context&) { return nullptr; }

 protected:
  // For constructors: appends the next block in forward order.
  void add(Block block) { blocks_.push_back(std::move(block)); }

 private:
  std::vector<Block> blocks_;
};

// The blocks without what they compute, as a store wants them.
inline std::vector<BlockParameters> parameters_by_block(const Model& model) {
  return {model.blocks().begin(), model.blocks().end()};
}

// All parameters, in forward order.
inline std::vector<Parameter*> parameters_of(const Model& model) {
  std::vector<Parameter*> all;
  for (const Block& block : model.blocks()) {
    all.insert(all.end(), block.parameters.begin(), block.parameters.end());
  }
  return all;
}

}  // namespace tandem
