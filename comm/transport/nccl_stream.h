// A CUDA stream with NCCL collectives on it, of one or several communicators, and the watch over
// them: NCCL works without blocking the host, and what is slow or stuck is seen by asking, against
// a deadline. One failure ends all communicators of the stream; everything later throws the same.
#pragma once

#include <nccl.h>

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control.h"
#include "comm/group.h"
#include "src/core/error.h"
#include "src/device/stream.h"

namespace tandem {

inline bool is_failure(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

class NcclStream {
 public:
  // `timeout_s`: seconds without progress; read at every wait.
  explicit NcclStream(const std::atomic<double>& timeout_s);

  Stream& stream() { return stream_; }

  // Collective: a communicator among the ranks of `control`, each with the GPU in use on this
  // thread. Throws Error(kTemporary) when NCCL does not come up.
  ncclComm_t join(Control& control);
  // Ends it, together with its other ranks unless `at_once`. Does not throw, nor wait for long.
  void leave(ncclComm_t comm, bool at_once) noexcept;

  // Enqueues a collective: calls() makes one NCCL group. Without data there is none.
  template <class F>
  void start(ncclComm_t comm, const Group& group, std::string_view name, int64_t bytes,
             int64_t number, F calls) {
    require_alive();
    forget_finished();
    std::string place = group.place(name, bytes, number);
    if (bytes > 0) {
      ncclGroupStart();
      const ncclResult_t called = calls();
      const ncclResult_t launched = ncclGroupEnd();
      settle(comm, is_failure(called) ? called : launched, place);
    }
    pending_.push_back({std::move(place), stream_.record()});
  }

  // Blocks the host until the event. Looks after the collectives while there are any; without them
  // nobody can hold the event up.
  void wait(const Event& event);

 private:
  struct Collective {
    std::string place;
    Event done;
  };

  void require_alive() const;
  bool forget_finished();  // true when something has
  // Waits until the library has done its part of a call on the host; `what` names the call.
  void settle(ncclComm_t comm, ncclResult_t result, const std::string& what);
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
