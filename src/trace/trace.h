// What one rank did in the steps that log.trace names. Times are nanoseconds by the rank's steady
// clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/device/ranks/control.h"
#include "src/trace/timeline.h"

namespace tandem {

struct TraceSpan {
  int64_t begin = 0, end = 0;

  int64_t length() const { return end - begin; }
};

struct Trace {
  struct Step {
    int64_t number = 0;
    TraceSpan span{};
    PhaseSeconds parts{};  // those of the metrics
  };
  // A piece of the compute stream, which belongs to one phase and one range.
  struct Piece {
    TraceSpan span{};
    Phase phase{};
    std::string range{};  // "block 3 backward"
  };
  struct Collective {
    TraceSpan span{};    // from where this rank has begun it
    uint64_t group = 0;  // FlightLog::open_group
    int64_t number = 0;  // among those of the group
    int64_t bytes = 0;
    std::string kind{}, purpose{}, ranks{};  // as in FlightCollective
    bool on_gpu = false;                     // whether a GPU's clock measured it
  };
  // Work of a thread of the host.
  struct HostWork {
    TraceSpan span{};
    std::string thread{}, name{};
  };
  struct MemoryUse {
    int64_t at = 0, bytes = 0;
  };

  int rank = 0, ranks = 1;
  std::string host{};
  std::vector<Step> steps{};
  std::vector<Piece> pieces{};
  std::vector<Collective> collectives{};
  std::vector<HostWork> host_work{};
  std::vector<MemoryUse> memory{};
  ClockReading first{}, last{};  // rank 0's clock, at both ends of the trace

  // A time of this rank by the clock of rank 0.
  int64_t by_rank_0(int64_t time) const;
};

}  // namespace tandem
