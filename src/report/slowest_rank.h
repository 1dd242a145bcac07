// Which rank makes the others wait, and on what it spends its time.
//
// All ranks end a step together, because each waits for the others' gradients. So the slowest is
// the one that waits least: whose own time, the step without waiting for communication, is largest.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "src/device/ranks/control.h"
#include "src/trace/timeline.h"

namespace tandem {

// Of the steps since the last logged one, on one rank.
struct RankTime {
  double seconds = 0;    // of the steps; on a CPU by the clock of the host
  PhaseSeconds parts{};  // the same, kSaving and kElsewhere on top

  double of(Phase phase) const { return parts[static_cast<size_t>(phase)]; }
  // What is the rank's own: computing, waiting for data and for copies, the optimizer.
  double own() const;
};

// Collective, one message. By rank.
std::vector<RankTime> gather_times(Control& job, const RankTime& own);

struct SlowestRank {
  int rank = 0;
  double ratio = 1;   // its own time over the median of all ranks'
  double more_s = 0;  // its own time less that median
  RankTime time{};
};

// Of equals, the first. The median is the lower of two middle ones. `ranks` must not be empty.
SlowestRank slowest_rank(const std::vector<RankTime>& ranks);

// Finds a rank that is slowest again and again: in 8 of the last 10 logged steps, by a tenth of the
// median and a millisecond a step or more.
class StragglerWatch {
 public:
  // The rank, once for each rank. `steps`: since the last call.
  std::optional<int> add(const SlowestRank& slowest, int64_t steps);

 private:
  std::deque<int> last_;  // the slowest ranks; -1: none by so much
  std::set<int> named_;
};

}  // namespace tandem
