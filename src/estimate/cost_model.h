// What each op of a transformer's training step must compute, read and write: the one model behind
// the floors of the benchmarks, the forecasts in tests/bench/README.md and `tandem estimate --ops`.
//
// The floor of an op is the time of its operations or of its bytes, whichever is longer, when every
// operand and result crosses memory once and all that can be fused is fused (the roofline:
// Williams, Waterman and Patterson 2009). The schedule is what our kernels read and write: it has
// passes that a perfect fusion would not need.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layers/models/transformer_block.h"
#include "src/device/stream.h"
#include "src/product/product.h"

namespace tandem {

// A matrix product without its tensors, as in Product.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  bool wide = false;  // D is f32: the gradient of a weight
  bool bias = false;
  Epilogue epilogue = Epilogue::kNone;

  double flops() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

struct OpCost {
  std::string name{};         // "QKV forward"
  std::string_view group{};   // the folder that calls its kernels: "product", "norm", ...
  double calls = 0;           // in a step of one micro-batch
  double launches = 0;        // kernels of one call
  double flops = 0;           // of products, in one call; a multiply-add counts two
  double floor_bytes = 0;     // of activations and of the optimizer's state, in one call
  double schedule_bytes = 0;  // the same, as our kernels read and write
  double small_bytes = 0;     // weights, their gradients, and numbers for each row; both count them
  std::optional<ProductShape> product{};
};

// A micro-batch of `batch` sequences of config.context tokens and the update after it. `config` is
// resolved(). Activations and weights have `dtype`; gradients, masters and AdamW's state are f32.
// The loss reads logits of config.vocab columns. Without dropout and recomputation.
// `document_length`: as in Context.
std::vector<OpCost> transformer_costs(const TransformerConfig& config, int64_t batch, DType dtype,
                                      int64_t document_length = 0);

// All parameters of the model.
double transformer_parameters(const TransformerConfig& config);

// Seconds of all calls at the rates of `ceilings`; launches take no time.
double floor_seconds(const OpCost& op, const Speed& ceilings);

}  // namespace tandem
