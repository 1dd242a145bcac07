// Matrix products. A layer describes a product; the device chooses how to compute it.
#pragma once

#include <string>

#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

// What is done to each element of a product before it is stored in D.
enum class Epilogue : uint8_t {
  kNone,
  kGelu,          // D = gelu(gelu_input), where the product is stored as gelu_input
  kGeluGradient,  // D = product * gelu'(gelu_input)
};

// D = epilogue(alpha * op(A) op(B) + beta * D + bias), in row-major matrices: op(A) is [m, k],
// op(B) is [k, n], D is [m, n].
//
// A and B have the same type: f32, f64 (on the CPU), bf16 or fp16. D has that type too, or f32, so
// that gradients of 16-bit weights are summed in f32. Sums are f32 (f64 for f64 operands). The
// product is rounded to D's type once, and the epilogue starts from the rounded number. So the bits
// are those of a separate pass after the product.
//
// On a GPU the choice for a product (product_choice.h) may be another formulation, where it was
// faster, or cuBLASLt's algorithm is one. Then, with u the unit roundoff of D's type, an element of
// D differs by at most
//   u |x|                    where a bias is added after the product x has been rounded;
//   1.13 u |x|               where GELU starts from the unrounded x (|gelu'| < 1.13);
//   u |x gelu'(gelu_input)|  where the slope multiplies the unrounded x,
// beside the one rounding of D and f32 errors of cuBLASLt's GELU. gelu_input differs by the first.
struct Product {
  struct Operand {
    Tensor data{};
    int64_t stride = 0;  // elements between the starts of stored rows; 0: data's last axis
    bool transposed = false;
    Tensor scale{};  // f32 [1], for FP8 types; if empty, 1

    int64_t row_stride() const { return stride ? stride : data.shape()[-1]; }
  };

  int64_t m = 0, n = 0, k = 0;
  Operand a{}, b{}, d{};
  double alpha = 1;
  double beta = 0;  // 0 overwrites D, whatever it holds
  Tensor bias{};    // [n], of the type of A, B and D; added to each row unless empty
  // D is known to be symmetric, as A A^T + beta D is for such a D: m = n. The CPU computes only
  // elements up to the diagonal, from those of the old D, and copies them. That changes no bit.
  bool is_symmetric = false;
  Epilogue epilogue = Epilogue::kNone;
  Tensor gelu_input{};  // [m, n], of D's type; for an epilogue neither it nor D has gaps

  std::string text() const;  // for messages
};

// Enqueues the product and says its work to the stream's meter.
//
// CPU: outside a parallel region it uses all CPU threads. The bits of an element of D depend only
// on its row of A, its column of B and k: not on m, n or the number of threads. CUDA: the first
// product of a stream, and the first of each size, allocate memory or choose an algorithm. While a
// graph is captured they are an Error(kInternal).
//
// Throws Error(kInternal), with the product's sizes, if the device cannot compute the product.
void multiply(const Stream& stream, const Product& product);

// Whether multiply() computes the product with its epilogue in one step, as the choice for it says.
// If not, the caller may do the epilogue in a pass that it needs anyway. Notes the product, as
// multiply() does, so that it is measured.
bool fuses_epilogue(const Stream& stream, const Product& product);

}  // namespace tandem
