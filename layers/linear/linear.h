// Fully connected layers: y = x W^T + b, and GELU between two of them. Over the ranks of
// context.tensor a layer is cut by outputs or by inputs (Shoeybi et al. 2019, "Megatron-LM").
#pragma once

#include <optional>

#include "layers/exchange/exchange.h"
#include "layers/lora/lora.h"

namespace tandem {

// kAllRows: a layer reads gather_rows(x). For backward it keeps x, and gathers it again.
enum class Reads : uint8_t { kOwnRows, kAllRows };

// x [..., in], weight [out, in], bias [out] or null; returns [..., out]. `out` counts the rows as
// they are stored: if the weight has padding rows (stored_shape), the result has padding columns.
// They are zero, and their gradient must be zero.
Variable linear(Context& context, const Variable& x, Parameter& weight, Parameter* bias,
                Reads reads = Reads::kOwnRows);

// gelu(x W^T + b), to be read by one other linear layer only. That layer's backward multiplies its
// gradient by GELU's derivative. So `input` has a gradient, and `value` has none.
struct GeluVariable {
  Variable input;  // x W^T + b; empty if backward does not need it
  Tensor value;    // [..., out]
};

// A linear layer and GELU as one product, and the linear layer that reads the result. The bits are
// the same as with gelu() between two calls of linear().
GeluVariable linear_gelu(Context& context, const Variable& x, Parameter& weight, Parameter* bias,
                         Reads reads = Reads::kOwnRows);
Variable linear(Context& context, const GeluVariable& x, Parameter& weight, Parameter* bias);

// Weight and bias of a linear layer, named `name`.weight and `name`.bias.
class Linear {
 public:
  Linear(const std::string& name, int64_t in, int64_t out, Initializer init, bool with_bias = true);
  // Several linear layers of one input as one. Its weight and its bias are stacks of theirs.
  struct Outputs {
    std::string name;
    int64_t count = 0;
  };
  Linear(const std::string& name, int64_t in, const std::vector<Outputs>& layers, Initializer init,
         bool with_bias);
  // Makes layers whose outputs ranks cut, each by itself. x [rows, in] are the rows of this rank;
  // the result has all rows, [N rows, this rank's outputs].
  static Linear cut_by_outputs(const std::string& name, int64_t in,
                               const std::vector<Outputs>& layers, Initializer init, bool with_bias,
                               Cut cut);
  // Makes a layer whose inputs ranks cut. It maps x [N rows, this rank's inputs] to [rows, out].
  static Linear cut_by_inputs(const std::string& name, int64_t in, int64_t out, Initializer init,
                              bool with_bias, Cut cut);
  // The outputs are the logits of classes.
  static Linear classifier(const std::string& name, int64_t in, int64_t classes, Initializer init);
  // Puts adapters at this layer if it is one of the targets, or else at those of its layers that
  // are. Not for a layer that ranks cut.
  void adapt(const LoraOptions& lora);
  bool is_adapted() const { return adapters_.has_value(); }
  Variable operator()(Context& context, const Variable& x);
  // These two are for layers without adapters.
  Variable operator()(Context& context, const GeluVariable& x);
  GeluVariable gelu(Context& context, const Variable& x);
  std::vector<Parameter*> parameters();

 private:
  Parameter* bias() { return with_bias_ ? &bias_ : nullptr; }
  template <class X, class... How>
  Variable apply(Context& context, const X& x, How... how);

  Parameter weight_;
  Parameter bias_;
  std::optional<Adapters> adapters_;
  bool with_bias_;
  Reads reads_ = Reads::kOwnRows;
  bool adds_rows_ = false;  // its result is a part of a sum over ranks
};

namespace kernels {

// dx = dy * gelu'(gelu_input), and partial [row_chunks, columns] = the sums of dx over chunks of
// its rows (src/kernels/column_sums.h). dx and dy may be the same array. Only for a GPU, where a
// pass over memory counts.
template <class T>
void gelu_gradient_and_sums(Cuda, const T* dy, const T* gelu_input, T* dx, Wide<T>* partial,
                            int64_t rows, int64_t columns);

}  // namespace kernels
}  // namespace tandem
