// The interface of a model: a list of blocks, and a loss.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layers/models/decoder.h"
#include "src/autograd/block.h"
#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

// The result of a model for one batch.
struct Loss {
  // [targets], f32 or f64: one loss per target, 0 for an ignored target. Without a gradient if the
  // context has a loss_gradient.
  Variable losses;
  Tensor correct{};  // i64 [1]: how many targets got the highest logit; empty in training
};

class Model {
 public:
  Model() = default;
  Model(const Model&) = delete;  // blocks refer to their model
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  // In forward order, with the head last. A block's BlockId is its position.
  const std::vector<Block>& blocks() const { return blocks_; }
  // The statistics that the model observes in training (BatchNorm), in forward order.
  virtual std::vector<RunningStatistics*> statistics() { return {}; }
  // input: tokens i32 [B, T], or images [B, H, W, C] of the compute dtype. targets: i32.
  virtual Loss loss(Context& context, const Tensor& input, const Tensor& targets) = 0;
  // Floating-point operations of forward and backward for one sample, where a multiply-add counts
  // as two. Recomputation does not count (model FLOPs: Chowdhery et al. 2022, appendix B).
  virtual double flops_per_sample() const = 0;
  // Generates so many texts side by side with this model, in a context without a tape, each in a
  // window of so many positions (0: the model's context, which is the most). Null if the model
  // cannot generate.
  virtual std::unique_ptr<Decoder> decoder(const Context&, int64_t /*slots*/, int64_t /*window*/) {
    return nullptr;
  }

 protected:
  // For constructors: appends the next block in forward order.
  void add(Block block) { blocks_.push_back(std::move(block)); }

 private:
  std::vector<Block> blocks_;
};

// The blocks without their functions, as a parameter store needs them.
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

// Counts the operations of a model's products, forward and backward, in forward order.
class ProductFlops {
 public:
  // Returns the operations for each row that these matrices are multiplied with: 6 for each of
  // their elements. A frozen one has no product for its own gradient, and where nothing before it
  // is trained none for that of the rows. Vectors have no products.
  double operator()(std::span<Parameter* const> parameters) {
    int64_t flops = 0;
    for (const Parameter* parameter : parameters) {
      const int64_t of_element = parameter->wanted() ? 6 : has_gradient_ ? 4 : 2;
      for (const Piece& piece : pieces_of(*parameter)) {
        const Shape& whole = piece.slice.whole();
        flops += whole.rank() < 2 ? 0 : of_element * whole.elements();
      }
      has_gradient_ = has_gradient_ || parameter->wanted();
    }
    return static_cast<double>(flops);
  }
  // Says whether a parameter that was counted is trained.
  bool has_gradient() const { return has_gradient_; }

 private:
  bool has_gradient_ = false;
};

}  // namespace tandem
