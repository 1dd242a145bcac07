// A CUDA stream for the NCCL collectives of one or several communicators. NCCL runs in non-blocking
// mode, so this class polls it; what makes no progress until a deadline counts as stuck. A failure
// aborts all communicators of the stream; every later call throws the same error.
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

namespace tandem {

inline bool is_failure(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

class NcclStream {
 public:
  // `timeout_s`: the deadline in seconds without progress; read at every wait.
  explicit NcclStream(const std::atomic<double>& timeout_s);

  Stream& stream() { return stream_; }

  // Collective: a communicator among the ranks of `control`. Each rank uses the current GPU of its
  // calling thread. Throws Error(kTemporary) if NCCL does not start.
  ncclComm_t join(Control& control);
  // Ends a communicator, together with its other ranks unless `at_once`. Does not throw, and does
  // not wait for long.
  void leave(ncclComm_t comm, bool at_once) noexcept;

  // Enqueues a collective: the calls in calls() are one NCCL group. With 0 bytes they are skipped.
  template <class F>
  void start(ncclComm_t comm, const Ranks& group, std::string_view name, int64_t bytes,
             int64_t number, F calls) {
    require_alive();
    forget_finished();
    std::string place = group.place(name, bytes, number);
    if (bytes > 0) {
      ncclGroupStart();
      const ncclResult_t called = calls();
      const ncclResult_t launched = ncclGroupEnd();
      wait_for_host(comm, is_failure(called) ? called : launched, place);
    }
    pending_.push_back({std::move(place), stream_.record()});
  }

  // Blocks the host until the event is reached, and polls NCCL while collectives are in flight.
  // Without any, the event cannot depend on other ranks.
  void wait(const Event& event);

 private:
  struct Collective {
    std::string place;
    Event done;
  };

  void require_alive() const;
  bool forget_finished();  // true if any has finished
  // Waits until NCCL has done a call's work on the host; `what` names the call in errors.
  void wait_for_host(ncclComm_t comm, ncclResult_t result, const std::string& what);
  [[noreturn]] void abort(ncclResult_t result, ncclComm_t comm, const std::string& what);
  [[noreturn]] void abort_silent(const std::string& what);
  [[noreturn]] void abort(ExitCode code, const std::string& message);

  const std::atomic<double>& timeout_s_;
  Stream stream_;
  std::vector<ncclComm_t> comms_;
  std::deque<Collective> pending_;
  std::unique_ptr<Error> error_;
};

}  // namespace tandem
