// Inverted dropout (Srivastava et al. 2014): in training each element is zero with probability p,
// and divided by 1 - p otherwise.
//
// The mask is a pure function of (seed, step, site, global sample, element within the sample). It
// depends neither on the number of ranks nor on the size of a micro-batch. Backward computes it
// again, so it is not saved.
#pragma once

#include <cmath>

#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

// x [rows, ...] are the rows of the micro-batch that context.rows says; without it axis 0 counts
// the samples of the micro-batch. `site` is a number for the place in the model. Returns x if p is
// 0 or context.training is false; p is in [0, 1). If no one else holds x's memory, the result
// reuses it.
Variable dropout(Context& context, Variable x, double p, uint32_t site);

namespace kernels {

// What determines a mask: the key of (seed, site), the step, and the global index of the first
// sample.
struct DropoutMask {
  PhiloxKey key;
  uint32_t step;
  uint64_t first_sample;

  static TANDEM_HOST_DEVICE DropoutMask of(const StepNumbers& numbers, uint32_t site) {
    return {random_key(numbers.seed, RandomUse::kDropout, site),
            static_cast<uint32_t>(numbers.step), static_cast<uint64_t>(numbers.first_sample)};
  }
};

// A sample's elements are taken in runs of 64. Element e of a run uses word e / 16 of the run's
// counter e % 16, so that neighbouring elements need the same word of neighbouring counters.
inline constexpr int kDropoutCounters = 16;
inline constexpr int kDropoutRun = 4 * kDropoutCounters;

// Applies dropout to one element, given its random word.
template <class W>
struct DropoutRule {
  explicit DropoutRule(double p)
      : threshold(static_cast<uint32_t>(std::ceil(p * 0x1p24))),
        factor(static_cast<W>(1 / (1 - p))) {}
  TANDEM_HOST_DEVICE W operator()(uint32_t word, W x) const {
    return (word >> 8) < threshold ? W(0) : x * factor;
  }
  uint32_t threshold;  // an element is dropped if uniform_from(word) < p
  W factor;
};

// Which elements of a micro-batch there are: [here.begin, here.end), of samples of `sample`
// elements.
struct DropoutElements {
  Range here;
  int64_t sample;
  int64_t first_sample() const { return here.begin / sample; }
  int64_t samples() const { return (here.end + sample - 1) / sample - first_sample(); }
};

// y = x * mask / (1 - p); y may be x. `numbers` is in device memory. The mask is the same on all
// devices.
template <class T>
void dropout(Cuda, const T* x, T* y, double p, uint32_t site, const StepNumbers* numbers,
             const DropoutElements& elements);

}  // namespace kernels
}  // namespace tandem
