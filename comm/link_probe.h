// Measures latency and bandwidth between ranks.
//
// The model is Hockney's (1994, "The communication challenge for MPP"): a collective of n bytes
// takes latency + n / bandwidth. Both contain the effects of the algorithm and of the number of
// ranks.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/sharding/group.h"
#include "comm/transport/dry_collectives.h"

namespace tandem {

// The collectives of training.
struct CollectiveKind {
  const char* name;
  int passes;  // how often the array goes around a ring: bytes / passes x (n - 1) / n each time
};
inline constexpr std::array<CollectiveKind, 4> kMeasuredCollectives = {
    {{"all_reduce", 2}, {"reduce_scatter", 1}, {"all_gather", 1}, {"all_to_all", 1}}};
inline constexpr size_t kAllReduce = 0, kReduceScatter = 1, kAllToAll = 3;  // in that list

// The bytes that a rank sends when an array of `bytes` goes around a ring.
inline double passed(int ranks, double bytes) { return bytes * (ranks - 1) / ranks; }

struct LinkSample {
  int64_t bytes = 0;   // of the whole array
  double seconds = 0;  // more than 0
};

// Sizes of arrays in bytes. After the second, larger ones are left out where all would take longer
// than about `budget_s`.
struct ProbeSizes {
  int64_t smallest = 4 << 10, largest = 0;
  double budget_s = 0;
};

// Collective among `all`, which are parted into groups; `group` is this rank's. Times of
// kMeasuredCollectives[kind] on f32 arrays of the smallest size, four times that and so on, rounded
// down to a multiple of the group's ranks. Each time is the median of 5 of the slowest rank, after
// one that does not count; all ranks get the same bits. An all_reduce counts as control messages.
// `compute`: its device holds the arrays.
std::vector<LinkSample> sample_link(const Group& all, Collectives& group, size_t kind,
                                    const Stream& compute, const ProbeSizes& sizes);

// The largest rate of a link, 10^6 GB/s, which stands for an infinite one.
inline constexpr double kMostRate = 1e15;

// Least squares of the relative errors, so that short and long messages count alike. Needs at least
// two samples of different sizes. kMostRate if size made no difference.
Link fit_link(std::span<const LinkSample> samples);

// The bus bandwidth, in 10^9 bytes/s, as nccl-tests define it (PERFORMANCE.md there): passes x
// (n - 1) / n x bytes / seconds. It is that of the slowest link, whatever the number of ranks.
double bus_gb_s(const CollectiveKind& kind, int ranks, const LinkSample& sample);

// Collective: measures it with an all_reduce of 64 MiB, or of less if that would take more than
// about 3 seconds. Throws AgreedError(kConfig) with both figures and likely causes if it is less
// than `least_gb_s`. Returns it; 0 with 1 rank, where there is nothing to measure.
double require_bus_bandwidth(const Group& group, const Stream& compute, double least_gb_s);

}  // namespace tandem
