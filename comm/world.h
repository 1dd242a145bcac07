// The processes of a job: who am I, how do I reach the others, how does the job end.
//
// One process per rank. MPI calls, including start-up and shutdown, run on one worker thread: the
// background stream of the collectives. Only groups that were split apart have threads of their
// own. A process that no launcher started is a world of 1 rank
// and does not start MPI, which would cost about a third of a second. In a build without MPI every
// world has 1 rank.
//
// A process leaves its world by finish() or abort(). If it ends in another way, the other ranks
// wait for it until the launcher ends them.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <string>

#include "src/core/error.h"
#include "src/device/ranks/collectives.h"
#include "src/device/ranks/control.h"

namespace tandem {

class World {
 public:
  // Collective. Throws Error(kConfig) when several processes were started by a build without MPI,
  // or when MPI allows no threads.
  World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return place_.rank; }
  int size() const { return place_.size; }
  int local_rank() const { return place_.local_rank; }  // among the ranks on this host
  int local_size() const { return place_.local_size; }
  const std::string& host() const { return host_; }
  // Among all ranks of the job.
  Control& control() { return *control_; }
  Collectives& collectives() { return *collectives_; }

  // A collective without progress for `seconds` (more than 0) throws Error(kTemporary) on the
  // worker. The error names the collective, its number, its bytes and the silent rank.
  void set_timeout_s(double seconds) {
    require(seconds > 0, "World::set_timeout_s: not positive");
    if (!waits_without_end_) {
      timeout_s_ = seconds;
    }
  }
  const std::atomic<double>& timeout_s() const { return timeout_s_; }
  // Switches time-outs off for good, because a rank may stand still in a debugger. Later calls of
  // set_timeout_s() have no effect.
  void wait_without_end() {
    waits_without_end_ = true;
    timeout_s_ = std::numeric_limits<double>::infinity();
  }

  // Collective: waits for all ranks, then ends MPI. Call it last, with the code that all processes
  // end with, and only after an error that all ranks see, or none.
  void finish(ExitCode code = ExitCode::kOk);

  // The only way out after an error: ends all ranks at once. The job's exit code is `code`; if
  // several ranks abort, the first one's. May be called from any thread, whatever the worker is
  // doing.
  [[noreturn]] void abort(ExitCode code);

 private:
  struct Place {
    int rank = 0, size = 1, local_rank = 0, local_size = 1;
  };
  static Place start_mpi();

  Place place_;
  std::string host_;
  bool waits_without_end_ = false;
  std::atomic<double> timeout_s_{300};
  std::atomic<bool> connected_{false};  // between MPI's start-up and shutdown
  std::unique_ptr<Stream> worker_;      // null: no MPI
  std::unique_ptr<Control> control_;
  std::unique_ptr<Collectives> collectives_;
};

}  // namespace tandem
