#include "src/step/finite_check.h"

#include <algorithm>
#include <cmath>

#include "src/device/copy.h"
#include "src/kernels/convert.h"
#include "src/kernels/reduce.h"

namespace tandem {

namespace {

constexpr int64_t kPiece = 1 << 20;  // elements that are widened at a time

}  // namespace

std::string FiniteCheck::Place::text() const {
  return str("micro-batch ", micro_batch, ", first in ",
             output.empty() ? "" : output + ", then in ", "the gradient of ", parameter);
}

FiniteCheck::FiniteCheck(const Model& model, Gate& gate, const Group& data, Stream& stream,
                         Memory& memory)
    : model_(model),
      gate_(gate),
      data_(data),
      stream_(stream),
      memory_(memory),
      squares_(Tensor::empty(memory, {1}, DType::kF64, MemoryClass::kWorkspace)),
      scratch_(Tensor::empty(memory, {kReduceScratch}, DType::kF64, MemoryClass::kWorkspace)) {}

void FiniteCheck::begin_micro_step(int64_t micro_batch) { here_ = {.micro_batch = micro_batch}; }

void FiniteCheck::see_output(BlockId block, const Flow& output) {
  for (const Variable& variable : output) {
    if (here_.output.empty() && !is_finite(variable.value())) {
      here_.output = "the output of block " + model_.blocks()[block].name;
    }
  }
}

// The gradient store may take what the block gave to shared parameters before that is final.
void FiniteCheck::release(Context& context, BlockId block, Pass pass) {
  for (const Parameter* parameter : parameters_of(model_)) {
    if (pass == Pass::kBackward && parameter->shared()) {
      see_gradient(*parameter);
    }
  }
  gate_.release(context, block, pass);
}

void FiniteCheck::see_loss(const Tensor& losses) {
  if (here_.output.empty() && !is_finite(losses)) {
    here_.output = "the loss";
  }
}

void FiniteCheck::see_gradient(const Parameter& parameter) {
  if (!place_ && parameter.grad_written && !is_finite(parameter.grad)) {
    here_.parameter = parameter.name;
    place_ = here_;
  }
}

// The squares of finite f32 numbers, and their sum, are finite in f64.
bool FiniteCheck::is_finite(const Tensor& tensor) {
  const bool is_narrow = tensor.dtype() == DType::kBf16 || tensor.dtype() == DType::kFp16;
  if (!is_narrow && tensor.dtype() != DType::kF32) {
    return true;  // integers
  }
  const int64_t n = tensor.elements();
  const Tensor flat = tensor.reshape({n});
  if (is_narrow && !wide_) {
    wide_ = Tensor::empty(memory_, {kPiece}, DType::kF32, MemoryClass::kWorkspace);
  }
  for (int64_t begin = 0; begin == 0 || begin < n; begin += kPiece) {
    Tensor piece = flat.slice(begin, std::min(n - begin, kPiece));
    if (is_narrow) {
      const Tensor wide = wide_.slice(0, piece.elements());
      convert(stream_, piece, wide);
      piece = wide;
    }
    on_device(stream_, touching(piece), [&](auto device) {
      squared_norm(device, piece.data<float>(), piece.elements(), squares_.data<double>(),
                   scratch_.data<double>(), begin > 0);
    });
  }
  data_.wait(stream_.record());  // has a deadline
  Memory host(Device::kCpu);
  return std::isfinite(*copied(stream_, squares_, host).data<double>());
}

}  // namespace tandem
