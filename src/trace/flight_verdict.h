// Reads the flight records of a job, and says what a job that hangs waits for.
#pragma once

#include <string>
#include <vector>

#include "src/trace/flight_log.h"

namespace tandem {

struct FlightRank {
  enum class Life : uint8_t {
    kRuns,
    kStopped,  // by a signal, or a debugger
    kGone,
    kSilent,   // on another host, and its record did not change for two writes
    kUnknown,  // on another host, seen once
  };
  FlightRecord record;
  Life life = Life::kUnknown;

  std::string state() const;  // "is stopped", "ended with code 71"
  // "in block 7 backward for 75 s", at the time `now` of the host's clock.
  std::string place(int64_t now) const;
  // The last `most` collectives, oldest first, without half written ones.
  std::vector<FlightCollective> collectives(size_t most = FlightRecord::kCollectives) const;
};

// The records in a folder, by rank: those of the start that the rank with the newest record belongs
// to. Of this host's ranks the record in memory is taken where there is one. `looks_twice`: if some
// ranks are on other hosts, reads again 12 s later, to see who is silent. Throws
// Error(kData) for a file that is no flight record.
std::vector<FlightRank> read_flight(const std::string& folder, bool looks_twice);

// One line, or "" if nothing is wrong. The first that fits: a process that is gone, stopped or
// silent; ranks that called different collectives under one number of a group; a process that runs
// again, but stood still for half of the longest wait; a rank that has not come to the collective
// that waits longest, and what it does; or all came, and it does not end. `calls_differ`: it is
// known that ranks called different collectives.
std::string flight_verdict(const std::vector<FlightRank>& ranks, int64_t now,
                           bool calls_differ = false);

// A rank that others wait for, and that is only late; see Deadline.
struct LateRank {
  std::string text;           // "rank 2 on node1, which is in saving for 75 s"; "" if none is
  bool is_said_here = false;  // whether this rank is the first of those that wait
};
LateRank late_rank_of_job();

// For an error of a job that waits in vain.
struct JobVerdict {
  // "; " and the verdict on the job of this process. "" where the job keeps no records, or they
  // cannot be read.
  std::string text{};
  // kInternal where ranks called different collectives: to start again does not help. Otherwise
  // kTemporary.
  ExitCode code = ExitCode::kTemporary;
};
JobVerdict flight_verdict_of_job(bool calls_differ = false);

}  // namespace tandem
