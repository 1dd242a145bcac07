// Sums of f32 arrays that have the same bits however many ranks, micro-steps and messages they are
// split into: 64-bit fixed point, where addition is associative (Demmel and Nguyen 2013, "Fast
// reproducible floating-point summation", take another way to the same end).
//
// The addends of a step are its leaves: the gradient of one micro-batch each. A leaf's element g
// becomes the integer nearest to g 2^e, with one exponent e for each parameter. With 2^h the
// largest power of two that all leaves can reach without overflow of their sum, e brings the
// largest |g| of that parameter, over all leaves of the step before, to [2^(h-11), 2^(h-10)): so
// growth by 2^10 fits. A step whose largest |g| leaves [2^(h-26), 2^h) is run again by everybody
// with exponents chosen from itself, which is also how the first step finds its own. A sum is
// therefore off by less than leaves 2^(25-h) of the largest |g|; h is 62 - log2(leaves), rounded
// down.
//
// A step: begin_step; quantise, for each leaf; the sum over ranks, by any route; dequantise, judge
// and squared_norm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/collectives.h"
#include "comm/control.h"

namespace tandem {

// A parameter, or a part of one, in a flat array.
struct ExactSegment {
  int64_t parameter = 0;  // whose exponent applies
  int64_t offset = 0;     // of the first element, in the flat array
  int64_t count = 0;
};

class ExactSums {
 public:
  // Exponents before anything is known: every leaf that is not zero is then a misfit.
  static constexpr int32_t kUnknown = INT32_MIN;

  // `stream`: the compute stream, of the device where all tensors live, `memory` too. `leaves`: of
  // all ranks in a step; 1 to 2^24. Both references must outlive this.
  ExactSums(Stream& stream, Memory& memory, int64_t parameters, int64_t leaves);

  // Before the first leaf of a step, or of a step that is run again: takes up the exponents that
  // the last judge() found.
  void begin_step();

  // Segments are in the order of their offsets and do not overlap.
  //
  // sums[i] (+)= fixed point of leaf[i] on the segments; `add`: adds, otherwise overwrites, with 0
  // for elements of no segment. Misfits and what is not finite count as 0; judge() tells. leaf: f32
  // [n]; sums: i64 [n]. Enqueued on the stream.
  void quantise(const Tensor& leaf, std::span<const ExactSegment> segments, const Tensor& sums,
                bool add);
  // Back: values[i] = sums[i] 2^-e, rounded once to f32, on the segments; elements of none: 0.
  // sums: i64 [n]; values: f32 [n]. Before the next begin_step(). Enqueued on the stream.
  void dequantise(const Tensor& sums, std::span<const ExactSegment> segments,
                  const Tensor& values) const;

  enum class Verdict : uint8_t {
    kGood,
    kAgain,      // the step must be run again, with the exponents found now
    kNonFinite,  // some leaf was not finite: the sums mean nothing, the exponents stay
  };
  // Collective, the same on all ranks, behind the last leaf of the step; waits for the stream. All
  // ranks must have quantised all their leaves. Uses control messages.
  Verdict judge(Control& control);

  // The sum of squares of `parts` (f32: dequantised values) of all ranks, for the norm that decides
  // on clipping: the same bits for every split of the elements over ranks and tensors. Collective;
  // waits for the stream; behind a judge() that said kGood. With G = leaves * largest |g| of the
  // step, n elements in all count as multiples of at most 2^-30 G, which leaves the root of the
  // result an error of at most sqrt(n) 2^-31 G; then it is rounded once. Throws Error(kInternal)
  // for parts that are no sums of the step.
  double squared_norm(Collectives& group, std::span<const Tensor> parts);

  // For checkpoints: the exponents of the next step, by parameter.
  const std::vector<int32_t>& exponents() const { return next_; }
  // Throws Error(kData) for a wrong number of exponents and for those that no step can find.
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
  Tensor digits_;                          // i64, device: the sum of squares under way
};

}  // namespace tandem
