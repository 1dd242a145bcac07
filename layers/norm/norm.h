// Normalisation over the last axis: LayerNorm (Ba et al. 2016, arXiv:1607.06450) and RMSNorm (Zhang
// and Sennrich 2019, arXiv:1910.07467). Epsilon is added to the variance or mean square.
//
// Forward saves x and one or two numbers per row. Gradients of gain and bias are first summed over
// chunks of rows that depend only on the shape, then over the chunks in order. So the bits are the
// same for every number of threads and on every GPU. If the bias of the linear layer before needs
// the sum of dx over rows, backward takes it in the same pass (GradSlot in
// src/autograd/variable.h).
#pragma once

#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

inline constexpr double kNormEpsilon = 1e-5;  // where nothing else is said

// y = gain * (x - mean) / sqrt(variance + eps) + bias. x [..., C], gain [C], bias [C]; returns x's
// shape.
Variable layer_norm(Context& context, const Variable& x, Parameter& gain, Parameter& bias,
                    double epsilon = kNormEpsilon);

// y = gain * x / sqrt(mean(x^2) + eps). x [..., C], gain [C]; returns x's shape.
Variable rms_norm(Context& context, const Variable& x, Parameter& gain,
                  double epsilon = kNormEpsilon);

struct Normalized {
  Variable sum;  // x + branch
  Variable y;    // the norm of sum
};

// A residual addition and the norm that follows it, in one pass over memory. The bits are the same
// as those of add() followed by the norm. If no one else holds the branch's memory, the sum reuses
// it, so pass the branch with std::move.
Normalized add_layer_norm(Context& context, const Variable& x, Variable branch, Parameter& gain,
                          Parameter& bias, double epsilon = kNormEpsilon);
Normalized add_rms_norm(Context& context, const Variable& x, Variable branch, Parameter& gain,
                        double epsilon = kNormEpsilon);

// LayerNorm, or without a bias RMSNorm. Parameters `name`.gain (ones) and `name`.bias (zeros).
class Norm {
 public:
  Norm(const std::string& name, int64_t width, double epsilon = kNormEpsilon,
       bool with_bias = true);
  Variable operator()(Context& context, const Variable& x);
  Normalized add(Context& context, const Variable& x, Variable branch);
  std::vector<Parameter*> parameters();

 private:
  Parameter* bias() { return with_bias_ ? &bias_ : nullptr; }

  Parameter gain_;
  Parameter bias_;
  double epsilon_;
  bool with_bias_;
};

namespace kernels {

// Arrays are [rows, width]; [width] for parameters; [rows] for mean and rstd. If mean is null, the
// norm is RMSNorm: no mean is subtracted, and there is no bias.

// If branch is not null, sum = x + branch is written, and the norm is that of sum; sum may be the
// same array as branch. If branch is null, sum is not used.
template <class T>
void norm_forward(Cuda, const T* x, const T* branch, const T* gain, const T* bias, T* sum, T* y,
                  Wide<T>* mean, Wide<T>* rstd, Wide<T> epsilon, int64_t rows, int64_t width);

// norm_backward sums the parameters' gradients separately for each of so many chunks of rows.
int64_t norm_chunks(Device device, int64_t rows);

// Sums over chunks of rows, each [norm_chunks, width].
template <class W>
struct NormSums {
  W* gain;  // of dy * normalised x
  W* bias;  // of dy; for RMSNorm what it holds afterwards is not defined
  W* dx;    // of dx as it is stored; null: not needed. Always null on a CPU
};

// dx = dx_beta * dx + gradient with respect to x; dx may be null.
template <class T>
void norm_backward(Cuda, const T* dy, const T* x, const T* gain, const Wide<T>* mean,
                   const Wide<T>* rstd, T* dx, Wide<T> dx_beta, NormSums<Wide<T>> sums,
                   int64_t rows, int64_t width);

}  // namespace kernels
}  // namespace tandem
