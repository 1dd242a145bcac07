// Low-rank adapters of a linear layer (Hu et al. 2021, arXiv:2106.09685, "LoRA").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/autograd/context.h"

namespace tandem {

// The ends of their names, as in peft.
inline constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight";

// Whether a parameter or a piece of this name belongs to adapters.
inline bool is_adapter(std::string_view name) {
  return name.ends_with(kLoraA) || name.ends_with(kLoraB);
}

struct LoraOptions {
  int64_t rank = 0;  // r; 0: no adapters
  double alpha = 16;
  std::vector<std::string> targets{};  // layers as a block calls them: "attn.q", "mlp.down"
};

// Adapters for some of the outputs of one layer.
class Adapters {
 public:
  struct Target {
    std::string name;  // "blocks.0.attn.q"
    Range outputs;     // columns of the layer's result
  };
  // For each target two matrices, A [r, in] and B [outputs, r], named NAME.lora_A.weight and
  // NAME.lora_B.weight. A is uniform in +-1 / sqrt(in), B is zero. All A are one parameter named
  // `layer`.lora_A.weight, and all B are another one.
  Adapters(const std::string& layer, const std::vector<Target>& targets, int64_t in,
           const LoraOptions& options);

  // x [..., in] and the layer's result y [..., out]. The result has y's memory, which no one else
  // may hold: (alpha / r) (x A^T) B^T is added to the columns of each target.
  Variable operator()(Context& context, const Variable& x, Variable y);
  std::vector<Parameter*> parameters() { return {&a_, &b_}; }

 private:
  std::vector<Range> outputs_;
  double scale_;
  Parameter a_, b_;
};

}  // namespace tandem
