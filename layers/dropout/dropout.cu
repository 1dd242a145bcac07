#include <algorithm>

#include "layers/dropout/dropout.h"
#include "src/device/global.h"
#include "src/kernels/launch.cuh"

namespace tandem::kernels {

namespace {

constexpr int kRunsPerBlock = 16;

// A thread computes one counter of one run. Its four words belong to elements kDropoutCounters
// apart, so that neighbouring threads access neighbouring elements. Philox is more than half of the
// instructions, so wider accesses would gain nothing.
template <class T>
__global__ void __launch_bounds__(kRunsPerBlock* kDropoutCounters)
    dropout_kernel(Global<const T> x, Global<T> y, DropoutRule<float> rule, uint32_t site,
                   Global<const StepNumbers> numbers, DropoutElements elements,
                   int64_t first_sample, int64_t samples) {
  // Only one thread computes the key, because that takes as long as the words of one counter.
  DropoutMask& mask = shared<DropoutMask>();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    mask = DropoutMask::of(numbers.load(0), site);
  }
  __syncthreads();
  const int64_t run = int64_t{blockIdx.x} * kRunsPerBlock + threadIdx.y;
  const int64_t first = run * kDropoutRun + threadIdx.x;
  const uint32_t counter = static_cast<uint32_t>(run) * kDropoutCounters + threadIdx.x;
  for (int64_t i = blockIdx.y; i < samples; i += gridDim.y) {
    const int64_t sample = first_sample + i;
    const PhiloxCounter words = random_words(
        mask.key, mask.first_sample + static_cast<uint64_t>(sample), mask.step, counter);
    const int64_t begin = sample * elements.sample - elements.here.begin;  // of the sample in x
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int64_t e = first + word * kDropoutCounters, at = begin + e;
      if (e < elements.sample && at >= 0 && at < elements.here.count()) {
        y.store(at, T(rule(words[word], x.load(at))));
      }
    }
  }
}

}  // namespace

template <class T>
void dropout(Cuda device, const T* x, T* y, double p, uint32_t site, const StepNumbers* numbers,
             const DropoutElements& elements) {
  if (elements.here.count() == 0) {
    return;
  }
  const int64_t samples = elements.samples();
  const dim3 grid(blocks_for(elements.sample, kRunsPerBlock * kDropoutRun),
                  static_cast<unsigned>(std::min<int64_t>(samples, 65535)));
  launch<dropout_kernel<T>>(device, grid, dim3(kDropoutCounters, kRunsPerBlock), 0, x, y,
                            DropoutRule<float>(p), site, numbers, elements, elements.first_sample(),
                            samples);
}

#define TANDEM_DROPOUT(T)                                                            \
  template void dropout<T>(Cuda, const T*, T*, double, uint32_t, const StepNumbers*, \
                           const DropoutElements&);
TANDEM_FOR_GPU(TANDEM_DROPOUT)

}  // namespace tandem::kernels
