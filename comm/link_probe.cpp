#include "comm/link_probe.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>

#include "src/core/error.h"
#include "src/device/ranks/agreement.h"

namespace tandem {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr int64_t kGrowth = 4;
constexpr int kRepeats = 5;

struct Sizes {
  int64_t smallest, largest;  // in bytes
  double budget_s;
};
constexpr Sizes kProbed{4 << 10, 4 << 20, 1}, kForBandwidth{64 << 10, 64 << 20, 3};

constexpr double kLatencyShare = 0.05;
constexpr int64_t kSmallestBucket = 256 << 10;

double seconds_of(const Hierarchy& group, const Tensor& data) {
  group.control().barrier();
  const auto begin = std::chrono::steady_clock::now();
  group.collectives().all_reduce(data, Traffic::kControl);
  group.wait(group.stream().record());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The mean over ranks of each rank's median. All ranks get the same bits, so that they go on or
// stop together.
double typical_seconds(const Hierarchy& group, const Tensor& data) {
  std::array<double, kRepeats> seconds{};
  std::ranges::generate(seconds, [&] { return seconds_of(group, data); });
  std::ranges::sort(seconds);
  return group.control().sum({&seconds[kRepeats / 2], 1})[0] / group.size();
}

// Typical times of all_reduce of the smallest size, kGrowth times that, and so on. After the second
// size it stops before one that would take the whole longer than about budget_s.
std::vector<LinkSample> sample(const Hierarchy& group, const Stream& compute, Sizes sizes) {
  Memory memory(compute);
  const Tensor data = Tensor::zeros(memory, {sizes.largest / size_of(DType::kF32)}, DType::kF32,
                                    MemoryClass::kStaging);
  const auto first = [&](int64_t bytes) { return data.slice(0, bytes / size_of(DType::kF32)); };
  seconds_of(group, first(sizes.smallest));  // not measured: it connects the ranks
  std::vector<LinkSample> samples;
  double spent = 0, next = 0;  // next: at most kGrowth times the seconds of the last size
  for (int64_t bytes = sizes.smallest;
       bytes <= sizes.largest && (samples.size() < 2 || spent + next < sizes.budget_s);
       bytes *= kGrowth) {
    samples.push_back({bytes, typical_seconds(group, first(bytes))});
    spent += kRepeats * samples.back().seconds;
    next = kGrowth * kRepeats * samples.back().seconds;
  }
  return samples;
}

}  // namespace

LinkRates fit_link(std::span<const LinkSample> samples) {
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
    return {.latency_s = x / xx, .bytes_per_s = kInfinite};
  }
  if (a <= 0) {
    return {.latency_s = 0, .bytes_per_s = yy / y};
  }
  return {.latency_s = a, .bytes_per_s = 1 / b};
}

LinkRates probe_link(const Hierarchy& group, const Stream& compute) {
  if (group.size() == 1) {
    return {.latency_s = 0, .bytes_per_s = kInfinite};
  }
  return fit_link(sample(group, compute, kProbed));
}

double bus_gb_s(int ranks, const LinkSample& all_reduce) {
  return 2.0 * (ranks - 1) / ranks * static_cast<double>(all_reduce.bytes) / all_reduce.seconds /
         1e9;
}

double require_bus_bandwidth(const Hierarchy& group, const Stream& compute, double least_gb_s) {
  if (group.size() == 1) {
    return 0;
  }
  const LinkSample largest = sample(group, compute, kForBandwidth).back();
  const double measured = bus_gb_s(group.size(), largest);
  if (measured < least_gb_s) {
    throw AgreedError(
        ExitCode::kConfig,
        str("the bus bandwidth of an all_reduce of ", largest.bytes >> 10, " KiB on ", group.size(),
            " ranks is ", measured, " GB/s, less than dist.min_gb_s = ", least_gb_s,
            "; likely causes: NCCL uses sockets, not EFA (see its log with NCCL_DEBUG=INFO); hosts "
            "in no placement group; another job on the same links"));
  }
  return measured;
}

int64_t plan_bucket_bytes(const LinkRates& rates, int64_t model_bytes) {
  int64_t bucket = kSmallestBucket;
  const auto transfer_s = [&] { return static_cast<double>(bucket) / rates.bytes_per_s; };
  while (bucket < model_bytes && rates.latency_s > kLatencyShare * transfer_s()) {
    bucket *= 2;
  }
  return std::min(bucket, model_bytes);
}

}  // namespace tandem
