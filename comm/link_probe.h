// How fast the ranks reach each other, measured at start-up, and the bucket size that follows.
//
// The model is Hockney's (1994, "The communication challenge for MPP"): an all_reduce of n bytes
// takes latency + n / bandwidth, whatever the algorithm and the number of ranks put into the two.
#pragma once

#include <cstdint>
#include <span>

#include "comm/hierarchy.h"

namespace tandem {

// An all_reduce of n bytes among all ranks takes latency_s + n / bytes_per_s.
struct LinkRates {
  double latency_s = 0;    // at least 0
  double bytes_per_s = 0;  // infinite where size made no difference
};

struct LinkSample {
  int64_t bytes = 0;
  double seconds = 0;  // more than 0
};

// Least squares of the relative errors, so that short and long messages count alike. At least two
// samples, of different sizes.
LinkRates fit_link(std::span<const LinkSample> samples);

// Collective: the median times of all_reduce of 4 KiB, 16 KiB, ... 4 MiB (f32), fitted; counted as
// control messages. After the second size it leaves out those that would bring the whole beyond
// about a second. The same bits on all ranks. `compute`: gradients are in the memory of its device.
// One rank: no latency, infinite bandwidth.
LinkRates probe_link(const Hierarchy& group, const Stream& compute);

// The smallest power of two for which latency is at most 5 % of the transfer of so many bytes, then
// within 256 KiB and `model_bytes` (which has the last word): smaller buckets cost time, larger
// ones hide less behind the backward pass. A power of two, so that a measurement that differs a
// little plans the same.
int64_t plan_bucket_bytes(const LinkRates& rates, int64_t model_bytes);

}  // namespace tandem
