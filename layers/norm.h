// Normalisation over the last axis: LayerNorm (Ba et al. 2016, arXiv:1607.06450) and RMSNorm (Zhang
// and Sennrich 2019, arXiv:1910.07467). Epsilon is 1e-5, added to the variance or mean square.
//
// Forward saves x and one or two numbers a row. Gradients of gain and bias are summed over chunks
// of rows whose bounds depend on the shape alone, then over chunks in order: the same bits for
// every number of threads.
#pragma once

#include "layers/module.h"

namespace tandem {

// y = gain * (x - mean) / sqrt(variance + eps) + bias. x [..., C], gain [C], bias [C]; returns x's
// shape.
Variable layer_norm(Context& context, const Variable& x, Parameter& gain, Parameter& bias);

// y = gain * x / sqrt(mean(x^2) + eps). x [..., C], gain [C]; returns x's shape.
Variable rms_norm(Context& context, const Variable& x, Parameter& gain);

// Parameters `name`.gain (ones) and `name`.bias (zeros).
class LayerNorm {
 public:
  LayerNorm(const std::string& name, int64_t width);
  Variable operator()(Context& context, const Variable& x);
  void visit(const ParameterVisitor& visitor);

 private:
  Parameter gain_;
  Parameter bias_;
};

// Parameter `name`.gain (ones).
class RmsNorm {
 public:
  RmsNorm(const std::string& name, int64_t width);
  Variable operator()(Context& context, const Variable& x);
  void visit(const ParameterVisitor& visitor);

 private:
  Parameter gain_;
};

namespace kernels {

inline constexpr double kNormEpsilon = 1e-5;

// Arrays are [rows, width], [width] for parameters, [rows] for mean and rstd. A null mean stands
// for RMSNorm: nothing is subtracted, and there is no bias.
template <class T>
void norm_forward(Cpu, const T* x, const T* gain, const T* bias, T* y, T* mean, T* rstd,
                  int64_t rows, int64_t width);

// Elements of workspace for norm_backward.
int64_t norm_workspace(Cpu, int64_t rows, int64_t width);

// dx = dx_beta * dx + the gradient by x; dx null: not wanted. workspace receives the sums for
// norm_backward_parameters.
template <class T>
void norm_backward(Cpu, const T* dy, const T* x, const T* gain, const T* mean, const T* rstd, T* dx,
                   T dx_beta, T* workspace, int64_t rows, int64_t width);

// dgain = beta * dgain + sum over rows of dy * normalised x, dbias likewise of dy (null: none).
template <class T>
void norm_backward_parameters(Cpu, const T* workspace, T* dgain, T dgain_beta, T* dbias,
                              T dbias_beta, int64_t rows, int64_t width);

}  // namespace kernels
}  // namespace tandem
