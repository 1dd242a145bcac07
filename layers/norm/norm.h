// Normalisation over the last axis: LayerNorm (Ba et al. 2016, arXiv:1607.06450) and RMSNorm (Zhang
// and Sennrich 2019, arXiv:1910.07467). Epsilon is 1e-5, added to the variance or mean square.
//
// Forward saves x and one or two numbers a row. Gradients of gain and bias are summed over parts of
// the rows that depend on the shape alone, then over these parts in order: the same bits for every
// number of threads and on every GPU.
#pragma once

#include "layers/module.h"

namespace tandem {

// y = gain * (x - mean) / sqrt(variance + eps) + bias. x [..., C], gain [C], bias [C]; returns x's
// shape.
Variable layer_norm(Context& context, const Variable& x, Parameter& gain, Parameter& bias);

// y = gain * x / sqrt(mean(x^2) + eps). x [..., C], gain [C]; returns x's shape.
Variable rms_norm(Context& context, const Variable& x, Parameter& gain);

struct Normalized {
  Variable sum;  // x + branch
  Variable y;    // the norm of sum
};

// A residual addition and the norm behind it, in one pass over memory; the same bits as add() and
// then the norm. The sum takes the branch's memory when nobody else holds it, so hand the branch
// over with std::move.
Normalized add_layer_norm(Context& context, const Variable& x, Variable branch, Parameter& gain,
                          Parameter& bias);
Normalized add_rms_norm(Context& context, const Variable& x, Variable branch, Parameter& gain);

// Parameters `name`.gain (ones) and `name`.bias (zeros).
class LayerNorm {
 public:
  LayerNorm(const std::string& name, int64_t width);
  Variable operator()(Context& context, const Variable& x);
  Normalized add(Context& context, const Variable& x, Variable branch);
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
  Normalized add(Context& context, const Variable& x, Variable branch);
  void visit(const ParameterVisitor& visitor);

 private:
  Parameter gain_;
};

namespace kernels {

inline constexpr double kNormEpsilon = 1e-5;

// Arrays are [rows, width], [width] for parameters, [rows] for mean and rstd. A null mean stands
// for RMSNorm: nothing is subtracted, and there is no bias.

// With a branch, sum = x + branch is written and normalised; sum may be the branch. Null: x itself.
template <class T>
void norm_forward(Cpu, const T* x, const T* branch, const T* gain, const T* bias, T* sum, T* y,
                  Wide<T>* mean, Wide<T>* rstd, int64_t rows, int64_t width);
template <class T>
void norm_forward(Cuda, const T* x, const T* branch, const T* gain, const T* bias, T* sum, T* y,
                  Wide<T>* mean, Wide<T>* rstd, int64_t rows, int64_t width);

// Chunks of rows whose gradients of the parameters norm_backward sums apart; elements of its
// workspace.
int64_t norm_chunks(Device device, int64_t rows);
int64_t norm_workspace(Device device, int64_t rows, int64_t width);

// dx = dx_beta * dx + the gradient by x; dx null: not wanted. workspace receives the sums for
// norm_backward_parameters.
template <class T>
void norm_backward(Cpu, const T* dy, const T* x, const T* gain, const Wide<T>* mean,
                   const Wide<T>* rstd, T* dx, Wide<T> dx_beta, Wide<T>* workspace, int64_t rows,
                   int64_t width);
template <class T>
void norm_backward(Cuda, const T* dy, const T* x, const T* gain, const Wide<T>* mean,
                   const Wide<T>* rstd, T* dx, Wide<T> dx_beta, Wide<T>* workspace, int64_t rows,
                   int64_t width);

// dgain = beta * dgain + sum over rows of dy * normalised x, dbias likewise of dy. Either may be
// null: not wanted.
template <class W>
void norm_backward_parameters(Cpu, const W* workspace, W* dgain, W dgain_beta, W* dbias,
                              W dbias_beta, int64_t rows, int64_t width);
template <class W>
void norm_backward_parameters(Cuda, const W* workspace, W* dgain, W dgain_beta, W* dbias,
                              W dbias_beta, int64_t rows, int64_t width);

}  // namespace kernels
}  // namespace tandem
