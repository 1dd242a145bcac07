// Measures latency and bandwidth between the ranks at start-up, and chooses the bucket size from
// them.
//
// The model is Hockney's (1994, "The communication challenge for MPP"): an all_reduce of n bytes
// takes latency + n / bandwidth. Both contain the effects of the algorithm and of the number of
// ranks.
#pragma once

#include <cstdint>
#include <span>

#include "comm/sharding/hierarchy.h"

namespace tandem {

// An all_reduce of n bytes among all ranks takes latency_s + n / bytes_per_s.
struct LinkRates {
  double latency_s = 0;    // at least 0
  double bytes_per_s = 0;  // infinite if size made no difference
};

struct LinkSample {
  int64_t bytes = 0;
  double seconds = 0;  // more than 0
};

// Least squares of the relative errors, so that short and long messages count alike. Needs at least
// two samples of different sizes.
LinkRates fit_link(std::span<const LinkSample> samples);

// Collective: fits the median times of all_reduce of 4 KiB, 16 KiB, ... 4 MiB (f32). After the
// second size it skips sizes that would make the probe take more than about a second. All ranks get
// the same bits. Bytes count as control messages. `compute`: its device holds the gradients. 1
// rank: zero latency, infinite bandwidth.
LinkRates probe_link(const Hierarchy& group, const Stream& compute);

// The bus bandwidth, in 10^9 bytes/s, as nccl-tests define it: 2 (n - 1) / n x bytes / seconds. It
// is that of the slowest link, whatever the number of ranks.
double bus_gb_s(int ranks, const LinkSample& all_reduce);

// Collective: measures it with an all_reduce of 64 MiB (f32, median of 5), or of less if that would
// take more than about 3 seconds. Throws AgreedError(kConfig) with both figures and likely causes
// if it is less than `least_gb_s`. Returns it; 0 with 1 rank, where there is nothing to measure.
double require_bus_bandwidth(const Hierarchy& group, const Stream& compute, double least_gb_s);

// The smallest power of two, from 256 KiB on, for which the latency is at most 5 % of the transfer
// time; but never more than `model_bytes`. Smaller buckets waste time on latency, larger ones
// overlap less with the backward pass. Only powers of two, so that small differences between
// measurements rarely change the result.
int64_t plan_bucket_bytes(const LinkRates& rates, int64_t model_bytes);

}  // namespace tandem
