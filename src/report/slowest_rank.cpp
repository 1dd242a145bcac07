#include "src/report/slowest_rank.h"

#include <algorithm>
#include <iterator>

#include "src/core/error.h"
#include "src/core/mapped.h"

namespace tandem {

namespace {

constexpr size_t kLooks = 10;
constexpr std::ptrdiff_t kTimes = 8;
constexpr double kRatio = 1.1, kMore_s = 1e-3;
constexpr size_t kNumbers = kPhases + 1;

}  // namespace

double RankTime::own() const {
  return of(Phase::kCompute) + of(Phase::kData) + of(Phase::kOptimizer) + of(Phase::kCopy);
}

std::vector<RankTime> gather_times(Control& job, const RankTime& own) {
  std::vector<double> numbers(static_cast<size_t>(job.size()) * kNumbers, 0.0);
  const auto rank = static_cast<size_t>(job.rank());
  std::ranges::copy(own.parts, numbers.begin() + static_cast<std::ptrdiff_t>(rank * kNumbers));
  numbers[rank * kNumbers + kPhases] = own.seconds;
  numbers = job.sum(numbers);
  std::vector<RankTime> ranks(static_cast<size_t>(job.size()));
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::copy_n(numbers.begin() + static_cast<std::ptrdiff_t>(r * kNumbers), kPhases,
                ranks[r].parts.begin());
    ranks[r].seconds = numbers[r * kNumbers + kPhases];
  }
  return ranks;
}

SlowestRank slowest_rank(const std::vector<RankTime>& ranks) {
  require(!ranks.empty(), "slowest_rank: no ranks");
  const auto slowest = std::ranges::max_element(ranks, {}, &RankTime::own);
  std::vector<double> own = mapped(ranks, &RankTime::own);
  std::ranges::sort(own);
  const double median = own[(own.size() - 1) / 2];
  return {.rank = static_cast<int>(slowest - ranks.begin()),
          .ratio = median > 0 ? own.back() / median : 1,
          .more_s = own.back() - median,
          .time = *slowest};
}

std::optional<int> StragglerWatch::add(const SlowestRank& slowest, int64_t steps) {
  const bool clearly =
      slowest.ratio >= kRatio && slowest.more_s >= kMore_s * static_cast<double>(steps);
  last_.push_back(clearly ? slowest.rank : -1);
  if (last_.size() > kLooks) {
    last_.pop_front();
  }
  const bool again = clearly && std::ranges::count(last_, slowest.rank) >= kTimes;
  return again && named_.insert(slowest.rank).second ? std::optional(slowest.rank) : std::nullopt;
}

}  // namespace tandem
