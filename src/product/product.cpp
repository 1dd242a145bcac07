#include "src/product/product.h"

#include "src/kernels/activation_functions.h"
#include "src/kernels/elementwise.h"
#include "src/product/gemm.h"
#include "src/product/product_choice.h"

namespace tandem {

namespace {

std::string matrix_text(const Product::Operand& matrix, int64_t rows, int64_t columns) {
  return str(name_of(matrix.data.dtype()), " [", matrix.transposed ? columns : rows, ", ",
             matrix.transposed ? rows : columns, "]", matrix.transposed ? "^T" : "", " (stride ",
             matrix.row_stride(), ")");
}

bool lies_inside(const Product::Operand& matrix, int64_t rows, int64_t columns) {
  return stored_elements(matrix, rows, columns) <= matrix.data.elements();
}

void require_possible(const Stream& stream, const Product& p) {
  const auto rule = [&](bool kept, std::string_view text) {
    require(kept, [&] { return str(p.text(), ": ", text); });
  };
  const DType type = p.a.data.dtype(), result = p.d.data.dtype();
  rule(type != DType::kF64 || stream.device() == Device::kCpu, "f64 has no kernels on cuda");
  rule(p.b.data.dtype() == type, "A and B must have one type");
  rule(result == type || result == wide_of(type), "D must have the type of A and B, or f32");
  rule(!p.a.scale && !p.b.scale && !p.d.scale, "scales belong to FP8 types, which are missing");
  rule(!p.d.transposed, "D cannot be transposed");
  rule(!p.is_symmetric || p.m == p.n, "D can only be symmetric if m = n");
  rule(lies_inside(p.a, p.m, p.k) && lies_inside(p.b, p.k, p.n) && lies_inside(p.d, p.m, p.n),
       "an operand is larger than its tensor");
  rule(!p.bias || (p.bias.dtype() == type && result == type && p.bias.elements() >= p.n),
       "a bias must have n elements, of the type of A, B and D");
  rule(p.epilogue == Epilogue::kNone ||
           (p.gelu_input.dtype() == result && p.gelu_input.elements() == p.m * p.n),
       "gelu_input must be [m, n], of D's type");
  rule(p.epilogue == Epilogue::kNone || (p.d.row_stride() == p.n && p.beta == 0),
       "an epilogue needs beta = 0, and rows of D without gaps");
}

// A, B and the bias are read, D is written or added to, GELU's input is read or written.
Work work_of(const Product& p) {
  Work work = touching(p.a.data, p.b.data, p.d.data, p.bias, p.gelu_input);
  work.bytes += p.beta == 0 ? 0 : static_cast<double>(p.d.data.bytes());
  work.flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n * p.k);
  return work;
}

}  // namespace

std::string Product::text() const {
  return str("a product of ", matrix_text(a, m, k), " times ", matrix_text(b, k, n), " into ",
             matrix_text(d, m, n), bias ? " with bias" : "");
}

Product without_last_step(const Product& product) {
  Product rest = product;
  if (product.epilogue == Epilogue::kNone) {
    rest.bias = {};
    return rest;
  }
  if (product.epilogue == Epilogue::kGelu) {
    rest.d = {.data = product.gelu_input, .stride = product.n};
  }
  rest.epilogue = Epilogue::kNone;
  rest.gelu_input = {};
  return rest;
}

void last_step(const Stream& stream, const Product& product) {
  if (product.epilogue == Epilogue::kNone) {
    Product sum = product;  // D + bias
    sum.k = 0;
    sum.beta = 1;
    const Work work = touching(sum.d.data, sum.d.data, sum.bias);
    return on_device(stream, work, [&](auto device) { kernels::multiply(device, sum); });
  }
  const int64_t elements = product.m * product.n;
  const Tensor& result = product.d.data;
  const bool forward = product.epilogue == Epilogue::kGelu;
  const Work work = touching(product.gelu_input, result, forward ? Tensor() : result);
  on_device(stream, work, result.dtype(), [&]<class T>(auto device) {
    T *d = product.d.data.data<T>(), *input = product.gelu_input.data<T>();
    if (forward) {
      kernels::activation_forward<kernels::Gelu>(device, elements, input, d);
    } else {
      kernels::activation_backward<kernels::Gelu>(device, elements, d, input, d, Wide<T>(0));
    }
  });
}

namespace {

// Whether the choice for the product says so; without one, a bias is fused and an epilogue is not.
bool is_fused(const Stream& stream, const Product& p) {
  if (p.epilogue == Epilogue::kNone && !p.bias) {
    return true;
  }
  if (stream.device() == Device::kCuda && !stream.is_dry()) {
    if (const auto choices = choices_in_use()) {
      if (const auto* choice = choices->find(ProductKey::of(p), Alignments::of(p))) {
        return choice->is_fused;
      }
    }
  }
  return p.epilogue == Epilogue::kNone;
}

void enqueue(const Stream& stream, const Product& p) {
  if (is_fused(stream, p)) {
    return on_device(stream, work_of(p), [&](auto device) { kernels::multiply(device, p); });
  }
  enqueue(stream, without_last_step(p));
  last_step(stream, p);
}

}  // namespace

bool fuses_epilogue(const Stream& stream, const Product& product) {
  ChoiceRecorder::note(product);
  return is_fused(stream, product);
}

void multiply(const Stream& stream, const Product& product) {
  require_possible(stream, product);
  ChoiceRecorder::note(product);
  enqueue(stream, product);
}

}  // namespace tandem
