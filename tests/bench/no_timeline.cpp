// In place of src/trace/timeline.cpp and src/report/slowest_rank.cpp in tandem_no_timeline:
// measures no phase of a step and sends no message about it. timeline_cost.py compares with it, on
// the CPU, where the time of a whole step comes from the host's clock.
#include <utility>

#include "src/report/slowest_rank.h"
#include "src/trace/timeline.h"

namespace tandem {

std::string_view name_of(Part /*phase*/) { return "none"; }
Phase Timeline::enter(Stream& /*compute*/, Phase phase) { return std::exchange(phase_, phase); }
void Timeline::wait(Stream& compute, const Event& communication) { compute.wait(communication); }
Timeline Timeline::take(Stream& /*compute*/) { return {}; }
PhaseSeconds Timeline::seconds() const { return {}; }

double RankTime::own() const { return 0; }
std::vector<RankTime> gather_times(Control& /*job*/, const RankTime& own) { return {own}; }
SlowestRank slowest_rank(const std::vector<RankTime>& /*ranks*/) { return {}; }
std::optional<int> StragglerWatch::add(const SlowestRank& /*slowest*/, int64_t /*steps*/) {
  return std::nullopt;
}

}  // namespace tandem
