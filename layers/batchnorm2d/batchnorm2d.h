// Batch normalisation over all axes but the last (Ioffe and Szegedy 2015, arXiv:1502.03167), fused
// with the operations that follow it in a residual network: y = relu(gain * (x - mean) * rstd +
// bias + residual). On a CPU these passes are limited by memory traffic, so the fused form is
// faster.
//
// Training uses the mean and the biased variance of the micro-batch, and does not change the
// running statistics. Each micro-batch adds its mean and unbiased variance to
// RunningStatistics::sum, unless it is being recomputed. The trainer updates `running` once per
// step.
#pragma once

#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

struct BatchNormOptions {
  bool relu = false;
  const Variable* residual = nullptr;  // of x's shape; added before the ReLU
};

// x [..., C], gain [C], bias [C]; returns x's shape. If context.training, normalises with the
// micro-batch's statistics, which need at least two values per channel. Otherwise normalises with
// statistics.running.
Variable batchnorm2d(Context& context, const Variable& x, Parameter& gain, Parameter& bias,
                     RunningStatistics& statistics, const BatchNormOptions& options = {});

// Parameters `name`.gain (ones) and `name`.bias (zeros), and the running statistics `name`.
class BatchNorm2d {
 public:
  BatchNorm2d(const std::string& name, int64_t channels);
  Variable operator()(Context& context, const Variable& x, const BatchNormOptions& options = {});
  std::vector<Parameter*> parameters() { return {&gain_, &bias_}; }
  RunningStatistics& statistics() { return statistics_; }

 private:
  Parameter gain_;
  Parameter bias_;
  RunningStatistics statistics_;
};

namespace kernels {

inline constexpr double kBatchNormEpsilon = 1e-5;

// Arrays are [rows, channels] or [channels]. Sums are taken over chunks of rows that depend only on
// the shape, in a fixed order. So the bits are the same for every number of threads and on every
// GPU.

// The channels of [rows, channels] arrays, and what they are normalised with, each [channels].
template <class T>
struct BatchChannels {
  const Wide<T>*mean, *rstd;
  const T *gain, *bias;
  int64_t rows, channels;
};

// Workspace, in elements, for each of the two kernels that need one.
int64_t batchnorm2d_workspace(Device device, int64_t rows, int64_t channels);

// mean and rstd = 1 / sqrt(biased variance + epsilon). Adds the mean and the unbiased variance to
// observed [2, channels] unless that is null.
template <class T>
void batchnorm2d_statistics(Cpu, const T* x, Wide<T>* mean, Wide<T>* rstd, float* observed,
                            int64_t rows, int64_t channels, Wide<T>* workspace);
template <class T>
void batchnorm2d_statistics(Cuda, const T* x, Wide<T>* mean, Wide<T>* rstd, float* observed,
                            int64_t rows, int64_t channels, Wide<T>* workspace);

// mean and rstd from running [2, channels], which holds mean and variance.
template <class W>
void batchnorm2d_running(Cpu, const float* running, W* mean, W* rstd, int64_t channels);
template <class W>
void batchnorm2d_running(Cuda, const float* running, W* mean, W* rstd, int64_t channels);

// y = gain * (x - mean) * rstd + bias, plus residual unless that is null; then ReLU if `relu`.
template <class T>
void batchnorm2d_normalize(Cpu, const BatchChannels<T>& of, const T* x, const T* residual,
                           bool relu, T* y);
template <class T>
void batchnorm2d_normalize(Cuda, const BatchChannels<T>& of, const T* x, const T* residual,
                           bool relu, T* y);

// How to find g, the gradient before the ReLU: g = dy where the ReLU passed its input, otherwise 0.
enum class ReluMask : uint8_t {
  kNone,        // no ReLU: g = dy
  kFromInput,   // recompute the ReLU's input from x (no residual)
  kFromOutput,  // from the sign of y
};

// sums [2, channels]: sum over rows of g, and of g * (x - mean) * rstd; these are the gradients of
// bias and gain. Writes g unless it is null; g may be the same array as dy. y is read only for
// kFromOutput.
template <class T>
void batchnorm2d_backward_sums(Cpu, const BatchChannels<T>& of, const T* dy, const T* x, const T* y,
                               ReluMask mask, T* g, Wide<T>* sums, Wide<T>* workspace);
template <class T>
void batchnorm2d_backward_sums(Cuda, const BatchChannels<T>& of, const T* dy, const T* x,
                               const T* y, ReluMask mask, T* g, Wide<T>* sums, Wide<T>* workspace);

// dx = beta * dx + gain * rstd * (g - sums[0] / rows - (x - mean) * rstd * sums[1] / rows). `mask`
// is kFromInput, or kNone if dy already is g. dx may be the same array as dy.
template <class T>
void batchnorm2d_backward_data(Cpu, const BatchChannels<T>& of, const T* dy, const T* x,
                               ReluMask mask, const Wide<T>* sums, T* dx, Wide<T> beta);
template <class T>
void batchnorm2d_backward_data(Cuda, const BatchChannels<T>& of, const T* dy, const T* x,
                               ReluMask mask, const Wide<T>* sums, T* dx, Wide<T> beta);

}  // namespace kernels
}  // namespace tandem
