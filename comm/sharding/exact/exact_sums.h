// Sums of f32 arrays whose bits do not depend on the number of ranks, micro-steps and messages.
// They use 64-bit fixed point, where addition is associative (Demmel and Nguyen 2013, "Fast
// reproducible floating-point summation", reach the same goal in another way).
//
// The addends of a step are its leaves: a leaf is the gradient that one block gives to a parameter
// in one micro-batch. A leaf's element g becomes the integer nearest to g 2^e, with one exponent e
// for each parameter. Let 2^h be the largest power of two that all leaves can reach without
// overflow of their sum: h is 62 - log2(leaves), rounded down. e brings the parameter's largest |g|
// in the previous step, over all leaves, to [2^(h-11), 2^(h-10)). So growth by 2^10 fits. If a
// parameter's largest |g| 2^e in a step is not in [2^(h-26), 2^h), all ranks run the step again,
// with exponents chosen from that step. The first step finds its exponents in the same way. A sum
// is therefore off by less than leaves 2^(25-h) of the largest |g|.
//
// A step: begin_step; quantise, for each leaf; the sum over ranks, by any route; judge; then
// dequantise and squared_norm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/autograd/parameter.h"
#include "src/device/ranks/collectives.h"
#include "src/device/ranks/control.h"
#include "src/trace/timeline.h"

namespace tandem {

// Sets the elements of `flat` before, between and after the segments to zero. The segments are in
// the order of in_flat and do not overlap. Enqueued on the stream.
void zero_gaps(Stream& stream, const Tensor& flat, std::span<const Extent> segments);

class ExactSums {
 public:
  // The exponent before a parameter's first gradient: no leaf fits then, unless it is zero.
  static constexpr int32_t kUnknown = INT32_MIN;

  // `stream`: the compute stream, on the device of all tensors and of `memory`. `leaves`: the
  // largest number of leaves of a parameter in a step, over all ranks; 1 to 2^24. Both references
  // must outlive this.
  ExactSums(Stream& stream, Memory& memory, int64_t parameters, int64_t leaves);

  // Call before the first leaf of a step, also of a step that is run again. Applies the exponents
  // that the last judge() found.
  void begin_step();

  // The segments are runs of parameters in a flat array. They must be in the order of in_flat and
  // must not overlap.
  //
  // sums[i] (+)= fixed point of leaf[i] on the segments. `add`: adds; otherwise overwrites, with 0
  // outside the segments. Elements that do not fit or are not finite count as 0; judge() reports
  // them. leaf: f32 [n]; sums: i64 [n]. Enqueued on the stream.
  void quantise(const Tensor& leaf, std::span<const Extent> segments, const Tensor& sums, bool add);
  // The way back: values[i] = sums[i] 2^-e, rounded once to f32, on the segments; 0 outside. sums:
  // i64 [n]; values: f32 [n]. Call before the next begin_step(). Enqueued on the stream.
  void dequantise(const Tensor& sums, std::span<const Extent> segments, const Tensor& values) const;

  enum class Verdict : uint8_t {
    kGood,
    kAgain,      // the step must be run again, with the exponents found now
    kNonFinite,  // some leaf was not finite: the sums mean nothing, the exponents stay
  };
  // Collective; all ranks get the same verdict. Call after the last leaf of the step, when all
  // ranks have quantised all their leaves. Waits for the stream; uses control messages.
  Verdict judge(Control& control);

  // The sum of squares of the `parts` (f32: dequantised values) of all ranks, for clipping. Its
  // bits do not depend on how the elements are split over ranks and tensors. Collective; waits for
  // the stream. Call after a judge() that returned kGood. With G = leaves * largest |g| of the
  // step, all n elements are rounded to multiples of at most 2^-30 G. So the root of the result has
  // an error of at most sqrt(n) 2^-31 G; then the result is rounded once. Throws Error(kInternal)
  // if `parts` do not come from this step. `timeline` gets the wait.
  double squared_norm(Collectives& group, std::span<const Tensor> parts, Timeline& timeline);

  // For checkpoints: the exponents of the next step, by parameter.
  const std::vector<int32_t>& exponents() const { return next_; }
  // Throws Error(kData) for a wrong number of exponents, and for exponents that no step can find.
  void set_exponents(std::vector<int32_t> exponents);

 private:
  std::vector<float> largest_of_all(Control& control);

  Stream& stream_;
  Memory host_{Device::kCpu};
  int64_t leaves_;
  int height_;                             // h: integers of one leaf are below 2^h
  std::vector<int32_t> exponents_, next_;  // by parameter: of this step, of the next
  double bound_;                           // G of the step that was judged good, otherwise NaN
  Tensor largest_;                         // i32 [parameters], device: bits of the largest |g|
  Tensor digits_;                          // i64, device: the sum of squares so far
};

}  // namespace tandem
