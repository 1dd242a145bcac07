#include "src/report/gpu_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "src/core/error.h"

namespace tandem {

namespace {

constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();

}  // namespace

std::vector<double> known(const GpuUses& ranks, GpuFigure figure) {
  std::vector<double> values;
  for (const std::optional<GpuUse>& use : ranks) {
    if (use && (*use)[figure]) {
      values.push_back(*(*use)[figure]);
    }
  }
  return values;
}

std::vector<Metric> GpuMetrics::add(const GpuUses& ranks, size_t all_ranks, double units,
                                    const std::string& name_of_units) {
  if (std::ranges::none_of(ranks, [](const auto& use) { return use.has_value(); })) {
    return {};
  }
  std::vector<Metric> gpu;
  for (size_t i = 0; i < kGpuFigures; ++i) {
    const auto figure = static_cast<GpuFigure>(i);
    Metric metric{std::string(name_of(figure)), kNotKnown};
    if (const std::vector<double> values = known(ranks, figure); !values.empty()) {
      metric.value =
          std::vector<Metric>{{"mean", std::accumulate(values.begin(), values.end(), 0.0) /
                                           static_cast<double>(values.size())},
                              {"least", std::ranges::min(values)},
                              {"greatest", std::ranges::max(values)}};
    }
    gpu.push_back(std::move(metric));
  }
  std::vector<int64_t> throttled;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r] && (*ranks[r])[GpuFigure::kThrottled] > 0.0) {
      throttled.push_back(static_cast<int64_t>(r));
    }
  }
  gpu.push_back({"throttled_ranks", throttled});
  return {{"gpu", gpu},
          {"joules_per_" + name_of_units.substr(0, name_of_units.size() - 1),
           joules_per_unit(ranks, units) * static_cast<double>(all_ranks) /
               static_cast<double>(ranks.size())}};
}

// A rank may have no sample since the line before, and then the energy of two lines in the next.
double GpuMetrics::joules_per_unit(const GpuUses& ranks, double units) {
  if (spent_.size() != ranks.size()) {
    spent_.assign(ranks.size(), std::nullopt);
    units_ = 0;
  }
  units_ += units;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r] && (*ranks[r])[GpuFigure::kEnergyJ]) {
      spent_[r] = spent_[r].value_or(0) + *(*ranks[r])[GpuFigure::kEnergyJ];
    }
  }
  if (std::ranges::any_of(spent_, [](const auto& joules) { return !joules; })) {
    return kNotKnown;
  }
  double joules = 0;
  for (std::optional<double>& of_rank : spent_) {
    joules += *std::exchange(of_rank, std::nullopt);
  }
  const double per_unit = joules / std::exchange(units_, 0);
  return std::exchange(has_begun_, true) ? per_unit : kNotKnown;
}

std::string clock_beside_median(const GpuUses& ranks, int rank) {
  const auto r = static_cast<size_t>(rank);
  if (r >= ranks.size() || !ranks[r] || !(*ranks[r])[GpuFigure::kClockMhz]) {
    return "";
  }
  std::vector<double> clocks = known(ranks, GpuFigure::kClockMhz);
  std::ranges::sort(clocks);
  return str("; its GPU runs at ", std::lround(*(*ranks[r])[GpuFigure::kClockMhz]),
             " MHz, the median at ", std::lround(clocks[clocks.size() / 2]), " MHz");
}

std::string GpuMetrics::new_gaps(const GpuUses& ranks) {
  std::vector<std::string> gaps;
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t i = 0; ranks[r] && (*ranks[r])[GpuFigure::kSamples] > 0.0 && i < kGpuFigures; ++i) {
      const auto figure = static_cast<GpuFigure>(i);
      if (!(*ranks[r])[figure] && named_.insert(figure).second) {
        gaps.push_back(str(name_of(figure), " (rank ", r, ")"));
      }
    }
  }
  return joined(gaps);
}

}  // namespace tandem
