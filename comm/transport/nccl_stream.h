// The NCCL calls of a job. NCCL runs in non-blocking mode, so this class polls it; what makes no
// progress until a deadline counts as stuck. A failure aborts all communicators; every later call
// throws the same error.
//
// Collectives of different communicators may run at once, on streams of their own. Each occupies a
// part of the GPU until the other ranks come, so GPUs must start them in one order, or they wait
// for each other for ever. The host's calls have the same order on all ranks. NCCL keeps the
// launches in it where NCCL_LAUNCH_ORDER_IMPLICIT is set, which World does; before NCCL 2.26 a
// collective waits for the one before it.
#pragma once

#include <nccl.h>

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport/ranks.h"
#include "src/core/error.h"
#include "src/device/ranks/control.h"
#include "src/device/stream.h"
#include "src/trace/recorder.h"

namespace tandem {

inline bool is_failure(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

class NcclStream {
 public:
  // `timeout_s`: the deadline in seconds without progress; read at every wait.
  explicit NcclStream(const std::atomic<double>& timeout_s);

  // Collective: a communicator among the ranks of `control`. Each rank uses the current GPU of its
  // calling thread. Throws Error(kTemporary) if NCCL does not start.
  ncclComm_t join(Control& control);
  // Collective: a communicator among the ranks of `whole` with this color, in the order of its
  // ranks. It shares the buffers of `whole`, so NCCL lets the collectives of both wait for each
  // other. Throws Error(kTemporary) if NCCL does not start.
  ncclComm_t split(ncclComm_t whole, int color, int rank);
  // Ends a communicator, together with its other ranks unless `at_once`. Does not throw, and does
  // not wait for long.
  void leave(ncclComm_t comm, bool at_once) noexcept;

  // Enqueues a collective on `stream`: the calls in calls() are one NCCL group. With 0 bytes they
  // are skipped. `flight_group`: of the communicator, for the flight log.
  template <class F>
  void start(ncclComm_t comm, Stream& stream, const Ranks& group, uint64_t flight_group,
             std::string_view name, int64_t bytes, int64_t number, F calls) {
    require_alive();
    const bool is_captured = stream.is_captured();
    std::deque<Collective>& before = is_captured ? captured_ : pending_;
    if (!keeps_order_ && !before.empty()) {
      stream.wait(before.back().done);
    }
    Collective own{.place = group.place(name, bytes, number)};
    if (is_captured) {
      captured_bytes_ += bytes;
    } else {
      forget_finished();
      own.noted = flight_log().enqueue(flight_group, group.name(), number, name, bytes);
      own.is_traced = recorder().is_on();
      own.first = own.is_traced ? stream.record_time() : Event();
    }
    if (bytes > 0) {
      ncclGroupStart();
      const ncclResult_t called = calls();
      const ncclResult_t launched = ncclGroupEnd();
      wait_for_host(comm, is_failure(called) ? called : launched, own.place);
    }
    own.done = own.is_traced ? stream.record_time() : stream.record();
    before.push_back(std::move(own));
  }

  // Lets the stream wait for what it has not yet waited for, before it launches a graph: streams of
  // a graph are others than those that it was captured from.
  void before_graph(Stream& compute);
  // Call it after a graph was launched that holds all collectives of captured streams so far:
  // together they count as one collective, which ends at `done`.
  void add_graph(const Ranks& group, uint64_t flight_group, int64_t number, Event done);
  int64_t launches() const { return launches_; }  // of the graph, so far

  // Blocks the host until the event is reached, and polls NCCL while collectives are in flight.
  // Without any, the event cannot depend on other ranks.
  void wait(const Event& event);

 private:
  struct Collective {
    std::string place{};
    Event done{};
    uint64_t noted = 0;  // in the flight log
    bool is_traced = false;
    Event first{};  // if it is traced
    bool is_graph = false;
  };

  void require_alive() const;
  bool forget_finished();  // true if any has finished
  // Waits until NCCL has done a call's work on the host; `what` names the call in errors.
  void wait_for_host(ncclComm_t comm, ncclResult_t result, const std::string& what);
  [[noreturn]] void abort(ncclResult_t result, ncclComm_t comm, const std::string& what);
  [[noreturn]] void abort_silent(const std::string& what, double seconds);
  [[noreturn]] void abort(ExitCode code, const std::string& message);

  const std::atomic<double>& timeout_s_;
  const bool keeps_order_;  // whether NCCL does
  std::vector<ncclComm_t> comms_;
  std::deque<Collective> pending_;
  std::deque<Collective> captured_;  // those of a graph; they never end
  int64_t captured_bytes_ = 0, launches_ = 0;
  std::unique_ptr<Error> error_;
};

}  // namespace tandem
