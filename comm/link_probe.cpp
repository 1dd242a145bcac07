#include "comm/link_probe.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>

#include "src/core/error.h"
#include "src/device/ranks/agreement.h"

namespace tandem {

namespace {

constexpr int64_t kGrowth = 4;
constexpr int kRepeats = 5;
constexpr ProbeSizes kForBandwidth{.smallest = 64 << 10, .largest = 64 << 20, .budget_s = 3};

// `other`: as large as `whole`, for an all_to_all.
double seconds_of(const Group& all, Collectives& group, size_t kind, const Tensor& whole,
                  const Tensor& other) {
  const int64_t shard = whole.elements() / group.size();
  const Tensor own = whole.slice(group.rank() * shard, shard);
  all.control().barrier();
  const auto begin = std::chrono::steady_clock::now();
  switch (kind) {
    case kAllReduce:
      group.all_reduce(whole, Traffic::kControl);
      break;
    case kReduceScatter:
      group.reduce_scatter(whole, own);
      break;
    case kAllToAll:
      group.all_to_all(whole, other);
      break;
    default:
      group.all_gather(own, whole);
  }
  all.wait(group.stream().record());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The median of some times, each that of the slowest rank, which the others will wait for. All
// ranks get the same bits, and go on or stop together.
double typical_seconds(const Group& all, Collectives& group, size_t kind, const Tensor& whole,
                       const Tensor& other) {
  seconds_of(all, group, kind, whole, other);  // not counted: it connects the ranks
  std::array<double, kRepeats> seconds{}, slowest{};
  std::ranges::generate(seconds, [&] { return seconds_of(all, group, kind, whole, other); });
  std::string own(sizeof seconds, '\0');
  std::memcpy(own.data(), &seconds, sizeof seconds);
  for (const std::string& of_rank : all.control().all_gather(own)) {
    std::memcpy(&seconds, of_rank.data(), sizeof seconds);
    std::ranges::transform(slowest, seconds, slowest.begin(), std::ranges::max);
  }
  std::ranges::sort(slowest);
  return slowest[kRepeats / 2];
}

}  // namespace

std::vector<LinkSample> sample_link(const Group& all, Collectives& group, size_t kind,
                                    const Stream& compute, const ProbeSizes& sizes) {
  const int64_t width = size_of(DType::kF32);
  Memory memory(compute);
  const auto zeros = [&] {
    return Tensor::zeros(memory, {sizes.largest / width}, DType::kF32, MemoryClass::kStaging);
  };
  const Tensor array = zeros(), other = kind == kAllToAll ? zeros() : array;
  std::vector<LinkSample> samples;
  double spent = 0, next = 0;  // next: at most kGrowth times the seconds of the last size
  for (int64_t bytes = sizes.smallest;
       bytes <= sizes.largest && (samples.size() < 2 || spent + next < sizes.budget_s);
       bytes *= kGrowth) {
    const int64_t n = bytes / width / group.size() * group.size();
    samples.push_back(
        {n * width, typical_seconds(all, group, kind, array.slice(0, n), other.slice(0, n))});
    const double took = (1 + kRepeats) * samples.back().seconds;
    spent += took;
    next = kGrowth * took;
  }
  return samples;
}

Link fit_link(std::span<const LinkSample> samples) {
  // Minimises the sum of ((a + b n - t) / t)^2, in x = 1 / t and y = n / t: a x + b y = 1.
  double xx = 0, xy = 0, yy = 0, x = 0, y = 0;
  for (const LinkSample& sample : samples) {
    const double u = 1 / sample.seconds;
    const double v = static_cast<double>(sample.bytes) / sample.seconds;
    xx += u * u;
    xy += u * v;
    yy += v * v;
    x += u;
    y += v;
  }
  const double determinant = xx * yy - xy * xy;
  require(determinant > 0, "fit_link: needs samples of two sizes at least");
  const double a = (x * yy - y * xy) / determinant;
  const double b = (y * xx - x * xy) / determinant;
  if (b <= 0) {
    return {.latency_s = x / xx, .bytes_per_s = kMostRate};
  }
  if (a <= 0) {
    return {.latency_s = 0, .bytes_per_s = std::min(yy / y, kMostRate)};
  }
  return {.latency_s = a, .bytes_per_s = std::min(1 / b, kMostRate)};
}

double bus_gb_s(const CollectiveKind& kind, int ranks, const LinkSample& sample) {
  return kind.passes * passed(ranks, static_cast<double>(sample.bytes)) / sample.seconds / 1e9;
}

double require_bus_bandwidth(const Group& group, const Stream& compute, double least_gb_s) {
  if (group.size() == 1) {
    return 0;
  }
  const LinkSample largest =
      sample_link(group, group.collectives(), kAllReduce, compute, kForBandwidth).back();
  const double measured = bus_gb_s(kMeasuredCollectives[kAllReduce], group.size(), largest);
  if (measured < least_gb_s) {
    throw AgreedError(
        ExitCode::kConfig, "the bus bandwidth of an all_reduce of ", largest.bytes >> 10,
        " KiB on ", group.size(), " ranks is ", measured,
        " GB/s, less than dist.min_gb_s = ", least_gb_s,
        "; likely causes: NCCL uses sockets, not EFA (see its log with NCCL_DEBUG=INFO); hosts "
        "in no placement group; another job on the same links");
  }
  return measured;
}

}  // namespace tandem
