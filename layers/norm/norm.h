// Normalisation over the last axis: LayerNorm (Ba et al. 2016, arXiv:1607.06450) and RMSNorm (Zhang
// and Sennrich 2019, arXiv:1910.07467). Epsilon is added to the variance or mean square.
//
// Forward saves x and one or two numbers per row. Gradients of gain and bias are first summed over
// chunks of rows that depend only on the shape, then over the chunks in order. So the bits are the
// same for every number of threads and on every GPU.
#pragma once

#include "layers/module.h"

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

// Parameters `name`.gain (ones) and `name`.bias (zeros).
class LayerNorm {
 public:
  LayerNorm(const std::string& name, int64_t width, double epsilon = kNormEpsilon);
  Variable operator()(Context& context, const Variable& x);
  Normalized add(Context& context, const Variable& x, Variable branch);
  void visit(const ParameterVisitor& visitor);

 private:
  Parameter gain_;
  Parameter bias_;
  double epsilon_;
};

// Parameter `name`.gain (ones).
class RmsNorm {
 public:
  RmsNorm(const std::string& name, int64_t width, double epsilon = kNormEpsilon);
  Variable operator()(Context& context, const Variable& x);
  Normalized add(Context& context, const Variable& x, Variable branch);
  void visit(const ParameterVisitor& visitor);

 private:
  Parameter gain_;
  double epsilon_;
};

namespace kernels {

// Arrays are [rows, width]; [width] for parameters; [rows] for mean and rstd. If mean is null, the
// norm is RMSNorm: no mean is subtracted, and there is no bias.

// If branch is not null, sum = x + branch is written, and the norm is that of sum; sum may be the
// same array as branch. If branch is null, sum is not used.
template <class T>
void norm_forward(Cpu, const T* x, const T* branch, const T* gain, const T* bias, T* sum, T* y,
                  Wide<T>* mean, Wide<T>* rstd, Wide<T> epsilon, int64_t rows, int64_t width);
template <class T>
void norm_forward(Cuda, const T* x, const T* branch, const T* gain, const T* bias, T* sum, T* y,
                  Wide<T>* mean, Wide<T>* rstd, Wide<T> epsilon, int64_t rows, int64_t width);

// norm_backward sums the parameters' gradients separately for each chunk of rows. These functions
// give the number of chunks, and the workspace in elements.
int64_t norm_chunks(Device device, int64_t rows);
int64_t norm_workspace(Device device, int64_t rows, int64_t width);

// dx = dx_beta * dx + gradient with respect to x; dx may be null. Writes to the workspace what
// norm_backward_parameters sums.
template <class T>
void norm_backward(Cpu, const T* dy, const T* x, const T* gain, const Wide<T>* mean,
                   const Wide<T>* rstd, T* dx, Wide<T> dx_beta, Wide<T>* workspace, int64_t rows,
                   int64_t width);
template <class T>
void norm_backward(Cuda, const T* dy, const T* x, const T* gain, const Wide<T>* mean,
                   const Wide<T>* rstd, T* dx, Wide<T> dx_beta, Wide<T>* workspace, int64_t rows,
                   int64_t width);

// dgain = dgain_beta * dgain + sum over rows of dy * normalised x; dbias the same for dy. Either
// may be null.
template <class W>
void norm_backward_parameters(Cpu, const W* workspace, W* dgain, W dgain_beta, W* dbias,
                              W dbias_beta, int64_t rows, int64_t width);
template <class W>
void norm_backward_parameters(Cuda, const W* workspace, W* dgain, W dgain_beta, W* dbias,
                              W dbias_beta, int64_t rows, int64_t width);

}  // namespace kernels
}  // namespace tandem
