#include "comm/transport/nccl_stream.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "comm/transport/deadline.h"
#include "comm/transport/patience.h"

namespace tandem {

namespace {

// Longer than any healthy shutdown takes.
constexpr double kFinish_s = 10;

// Throws on all ranks if NCCL does not work on rank 0.
ncclUniqueId agree_on_id(Control& control) {
  ncclUniqueId id{};
  std::string text, why;
  if (control.rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result == ncclSuccess) {
      text.assign(id.internal, sizeof id.internal);
    } else {
      why = str(": ", ncclGetErrorString(result), " (", ncclGetLastError(nullptr), ")");
    }
  }
  text = control.broadcast(std::move(text), 0);
  if (text.size() != sizeof id.internal) {
    fail(ExitCode::kTemporary, "NCCL does not start on rank 0" + why);
  }
  std::copy(text.begin(), text.end(), id.internal);
  return id;
}

// Whether NCCL starts collectives in the order of the calls, whatever their streams.
bool nccl_keeps_order() {
  constexpr int kFirstVersion = 22600;
  int version = 0;
  const char* set = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  return ncclGetVersion(&version) == ncclSuccess && version >= kFirstVersion && set &&
         std::atoi(set) != 0;
}

}  // namespace

NcclStream::NcclStream(const std::atomic<double>& timeout_s)
    : timeout_s_(timeout_s), keeps_order_(nccl_keeps_order()) {}

ncclComm_t NcclStream::join(Control& control) {
  require_alive();
  const ncclUniqueId id = agree_on_id(control);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;
  ncclComm_t comm = nullptr;
  const ncclResult_t result =
      ncclCommInitRankConfig(&comm, control.size(), id, control.rank(), &config);
  if (comm) {
    comms_.push_back(comm);
  }
  wait_for_host(comm, result, "start of NCCL");
  return comm;
}

ncclComm_t NcclStream::split(ncclComm_t whole, int color, int rank) {
  require_alive();
  const std::string name = "split of NCCL";
  ncclComm_t part = nullptr;
  const ncclResult_t begun = ncclCommSplit(whole, color, rank, &part, nullptr);
  // NCCL 2.28 calls it a success while the split goes on.
  wait_for_host(whole, is_failure(begun) ? begun : ncclInProgress, name);
  comms_.push_back(part);  // which is there since the whole is ready again
  wait_for_host(part, ncclInProgress, name);
  return part;
}

void NcclStream::leave(ncclComm_t comm, bool at_once) noexcept {
  if (std::erase(comms_, comm) == 0) {
    return;  // already aborted
  }
  if (at_once || is_failure(ncclCommFinalize(comm))) {
    ncclCommAbort(comm);
    return;
  }
  ncclResult_t state = ncclInProgress;
  for (const Patience patience; patience.waited_s() < kFinish_s;) {
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess || state != ncclInProgress) {
      break;
    }
    patience.pause(patience.waited_s());
  }
  static_cast<void>(state == ncclSuccess ? ncclCommDestroy(comm) : ncclCommAbort(comm));
}

void NcclStream::before_graph(Stream& compute) {
  forget_finished();
  for (const Collective& collective : pending_) {
    if (!collective.is_graph) {
      compute.wait(collective.done);
    }
  }
}

void NcclStream::add_graph(const Ranks& group, uint64_t flight_group, int64_t number, Event done) {
  if (captured_.empty()) {
    return;
  }
  ++launches_;
  constexpr const char* kGraph = "graph";
  pending_.push_back(
      {.place = str(group.place(kGraph, captured_bytes_, number), ", from ",
                    captured_.front().place, " to ", captured_.back().place),
       .done = std::move(done),
       .noted = flight_log().enqueue(flight_group, group.name(), number, kGraph, captured_bytes_),
       .is_graph = true});
}

void NcclStream::wait(const Event& event) {
  require_alive();
  forget_finished();
  std::optional<Deadline> deadline(timeout_s_);
  for (Patience patience; !pending_.empty() && !event.reached();) {
    for (ncclComm_t comm : comms_) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
      if (is_failure(asked) || is_failure(state)) {
        abort(is_failure(asked) ? asked : state, comm, pending_.front().place);
      }
    }
    const double waited = patience.waited_s();
    if (deadline->is_over(waited)) {
      abort_silent(pending_.front().place, deadline->seconds());
    }
    patience.pause(waited);
    if (forget_finished()) {
      patience = {};
      deadline.emplace(timeout_s_);
    }
  }
  event.synchronize();
}

void NcclStream::require_alive() const {
  if (error_) {
    throw *error_;
  }
}

bool NcclStream::forget_finished() {
  const size_t before = pending_.size();
  while (!pending_.empty() && pending_.front().done.reached()) {
    const Collective& done = pending_.front();
    flight_log().end(done.noted);
    if (done.is_traced && recorder().is_on()) {
      recorder().add(flight_log().entry(done.noted), done.first, done.done);
    }
    pending_.pop_front();
  }
  return pending_.size() < before;
}

void NcclStream::wait_for_host(ncclComm_t comm, ncclResult_t result, const std::string& what) {
  Deadline deadline(timeout_s_);
  for (const Patience patience; result == ncclInProgress;) {
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
    result = is_failure(asked) ? asked : result;
    const double waited = patience.waited_s();
    if (result == ncclInProgress && deadline.is_over(waited)) {
      abort_silent(what, deadline.seconds());
    }
    patience.pause(waited);
  }
  if (is_failure(result)) {
    abort(result, comm, what);
  }
}

void NcclStream::abort(ncclResult_t result, ncclComm_t comm, const std::string& what) {
  const std::string why = ncclGetLastError(comm);
  // NCCL often clears CUDA's error, but then has its words.
  const bool memory = cudaGetLastError() == cudaErrorMemoryAllocation ||
                      why.find("out of memory") != std::string::npos ||
                      why.find("Failed to CUDA") != std::string::npos;  // calloc, or host alloc
  // A wrong call is this program's fault, everything else may be the machine's.
  const bool wrong_call = result == ncclInvalidArgument || result == ncclInvalidUsage;
  abort(memory       ? ExitCode::kOutOfMemory
        : wrong_call ? ExitCode::kInternal
                     : ExitCode::kTemporary,
        str(what, ": NCCL: ", ncclGetErrorString(result), " (", why, ")"));
}

void NcclStream::abort_silent(const std::string& what, double seconds) {
  const JobVerdict verdict = flight_verdict_of_job();
  abort(verdict.code,
        str(what, ": nothing moved for ", seconds,
            " s; a rank is lost, stuck or very late; start the job again from its last "
            "checkpoint, or raise dist.timeout_s",
            verdict.text));
}

void NcclStream::abort(ExitCode code, const std::string& message) {
  error_ = std::make_unique<Error>(code, message);
  pending_.clear();
  for (ncclComm_t comm : comms_) {
    ncclCommAbort(comm);
  }
  comms_.clear();
  throw *error_;
}

}  // namespace tandem
