// NCCL on the emulated GPU. Ranks are processes, and data is sent by MPI when built with
// TANDEM_SIMT_MPI; otherwise there is 1 rank.
//
// A collective, or a group of them, is one piece of work on its stream. The stream polls it until
// all ranks have come; other streams do not wait. Sums are added in rank order.
//
// A call that breaks a rule of the library is a failure: ranks that call different collectives or
// in a different order, also of different communicators; sends that do not match what is received;
// a communicator that is used before it is ready, while the last call is not finished, or after its
// end; buffers that overlap but are not in place; groups of two communicators that could start in
// another order than that of their calls. NCCL_LAUNCH_ORDER_IMPLICIT=1 keeps that order, as in NCCL
// 2.26; otherwise the streams must.
#include <nccl.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/simt/libraries/nccl_group.h"
#include "tests/simt/simt.h"

using simt::Group;
using simt::Kind;
using simt::Operation;
using simt::Wire;

struct ncclComm {
  enum State { kConnecting, kComparing, kReady, kFinalized, kOver };

  int ranks, rank;
  std::unique_ptr<Wire> wire;
  std::vector<std::byte> id, ids = {};
  std::mutex mutex = {};  // never held while calling the emulator, whose lock is taken before it
  State state = kConnecting;
  std::atomic<uint64_t> calls = 0;
  std::shared_ptr<Group> launching = {};  // called, not yet enqueued; only the host uses it
  std::deque<std::shared_ptr<Group>> groups = {};  // enqueued, in the order of the calls

  void start_up();
  bool poll(const std::shared_ptr<Group>& group);
};

namespace {

// The communicators of this process; their groups that are called and not finished, in the order of
// the calls.
class Launches {
 public:
  void open(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    comms_.push_back(comm);
    if (comms_.size() > std::tuple_size_v<simt::CallCounts>) {
      simt::fail_nccl("more communicators of a process than are emulated");
    }
  }
  void close(ncclComm_t comm) {
    const std::lock_guard lock(mutex_);
    std::erase(comms_, comm);
    for (const std::shared_ptr<Group>& group : comm->groups) {
      std::erase(groups_, group);
    }
  }
  // The calls so far of all communicators.
  simt::CallCounts calls() {
    const std::lock_guard lock(mutex_);
    simt::CallCounts counts{};
    for (size_t i = 0; i < comms_.size(); ++i) {
      const std::string_view id(reinterpret_cast<const char*>(comms_[i]->id.data()),
                                comms_[i]->id.size());
      counts[i] = {std::hash<std::string_view>{}(id), comms_[i]->calls};
    }
    return counts;
  }
  void add(const std::shared_ptr<Group>& group) {
    const std::lock_guard lock(mutex_);
    groups_.push_back(group);
  }
  void remove(const std::shared_ptr<Group>& group) {
    const std::lock_guard lock(mutex_);
    std::erase(groups_, group);
  }
  // Whether a group may begin whose stream has reached it.
  bool may_begin(const std::shared_ptr<Group>& group) {
    const std::lock_guard lock(mutex_);
    for (const std::shared_ptr<Group>& earlier : groups_) {
      if (earlier == group) {
        break;
      }
      if (!keeps_order()) {
        simt::fail_nccl("nothing orders groups of two communicators",
                        earlier->title() + "; " + group->title());
      }
      if (!earlier->begun()) {
        return false;
      }
    }
    return true;
  }

 private:
  static bool keeps_order() {
    const char* set = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return set && std::atoi(set) != 0;
  }

  std::mutex mutex_;  // taken last
  std::vector<ncclComm_t> comms_;
  std::list<std::shared_ptr<Group>> groups_;
};

Launches& launches() {
  static Launches all;
  return all;
}

}  // namespace

// Connects, and checks that all ranks use the same unique id.
void ncclComm::start_up() {
  if (state == kConnecting && wire->connected()) {
    simt::gather(*wire, ranks, rank, id, ids);
    state = kComparing;
  }
  if (state == kComparing && wire->arrived()) {
    for (int r = 0; r < ranks; ++r) {
      if (std::memcmp(&ids[id.size() * r], id.data(), id.size()) != 0) {
        simt::fail_nccl("ranks start with different unique ids",
                        "ranks " + std::to_string(r) + " and " + std::to_string(rank));
      }
    }
    state = kReady;
  }
}

// Groups run one after another in the order of the calls, even on different streams.
bool ncclComm::poll(const std::shared_ptr<Group>& group) {
  const std::lock_guard lock(mutex);
  if (state == kOver) {
    return true;  // aborted; the buffers of unfinished MPI calls are kept
  }
  if (groups.front() != group || (!group->begun() && !launches().may_begin(group)) ||
      !group->advance(*wire, ranks, rank)) {
    return false;
  }
  groups.pop_front();
  launches().remove(group);
  return true;
}

namespace {

// The group that this thread is building.
struct OpenGroup {
  int depth = 0;
  ncclComm_t comm = nullptr;
  std::shared_ptr<Group> group;
};
thread_local OpenGroup open_group;

void require_ready(ncclComm_t comm) {
  switch (comm->state) {
    case ncclComm::kReady:
      break;
    case ncclComm::kOver:
    case ncclComm::kFinalized:
      simt::fail_nccl("communicator used after its end");
    default:
      simt::fail_nccl("communicator used before it is ready");
  }
  if (comm->launching) {
    simt::fail_nccl("communicator used while its last call is in progress");
  }
}

ncclResult_t call(Operation operation, ncclComm_t comm, cudaStream_t stream) {
  if (!comm || operation.root >= comm->ranks ||
      (operation.is_message() && operation.root == comm->rank)) {
    return ncclInvalidArgument;
  }
  if (operation.count == 0) {
    return ncclSuccess;
  }
  OpenGroup& open = open_group;
  const std::lock_guard lock(comm->mutex);
  require_ready(comm);
  if (open.group && (open.comm != comm || open.group->stream() != stream)) {
    simt::fail_nccl("groups over several communicators or streams are not emulated");
  }
  ncclGroupStart();
  if (!open.group) {
    open.comm = comm;
    ++comm->calls;
    open.group = std::make_shared<Group>(stream, comm->calls.load(), launches().calls());
  }
  open.group->add(operation);
  return ncclGroupEnd();
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInProgress:
      return "in progress";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    default:
      return "an error that the emulation never gives";
  }
}

// NCCL gives its last warning, also for a communicator that it did not make.
const char* ncclGetLastError(ncclComm_t comm) {
  return comm ? "emulated NCCL" : "Cuda failure 2 'out of memory'";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = simt::new_id();
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
  if (rank < 0 || rank >= ranks || config->size != fresh.size || config->magic != fresh.magic) {
    return ncclInvalidArgument;
  }
  if (config->blocking != 0) {
    simt::fail_nccl("communicators that block the host are not emulated");
  }
  constexpr size_t kBuffers = 1 << 20;  // what NCCL takes at least
  size_t free_bytes = 0, all_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &all_bytes) != cudaSuccess || free_bytes < kBuffers) {
    return ncclUnhandledCudaError;
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(id.internal);
  *comm = new ncclComm{.ranks = ranks,
                       .rank = rank,
                       .wire = simt::connect(id, ranks, rank),
                       .id = {bytes, bytes + sizeof id.internal}};
  launches().open(*comm);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  std::shared_ptr<Group> group;
  {
    const std::lock_guard lock(comm->mutex);
    if (comm->state == ncclComm::kOver) {
      simt::fail_nccl("communicator used after its end");
    }
    comm->start_up();
    group = std::exchange(comm->launching, nullptr);
    if (group) {
      comm->groups.push_back(group);
      launches().add(group);
    }
    const bool finishing = comm->state == ncclComm::kFinalized && !comm->groups.empty();
    *state = comm->state < ncclComm::kReady || finishing ? ncclInProgress : ncclSuccess;
  }
  if (group) {
    simt::enqueue_polled(
        group->stream(), "an NCCL group", [comm, group] { return comm->poll(group); },
        comm->ranks > 1);
  }
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(comm->mutex);
  require_ready(comm);
  comm->state = ncclComm::kFinalized;
  return ncclInProgress;
}

// Keeps the object, so that later use of it is reported.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(comm->mutex);
  if (comm->state != ncclComm::kFinalized || !comm->groups.empty()) {
    simt::fail_nccl("communicator destroyed before it was finalized");
  }
  comm->state = ncclComm::kOver;
  launches().close(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm) {
    const std::lock_guard lock(comm->mutex);
    comm->state = ncclComm::kOver;
    launches().close(comm);
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++open_group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (open_group.depth == 0) {
    return ncclInvalidUsage;
  }
  if (--open_group.depth > 0 || !open_group.group) {
    return ncclSuccess;
  }
  const OpenGroup closed = std::exchange(open_group, {});
  closed.comm->launching = closed.group;
  return ncclInProgress;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::kAllReduce, send, receive, count, type}, comm, stream);
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t, int root, ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::kReduce, send, receive, count, type, root}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count,
                               ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                               cudaStream_t stream) {
  return call({Kind::kReduceScatter, send, receive, receive_count, type}, comm, stream);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::kAllGather, send, receive, send_count, type}, comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::kBroadcast, send, receive, count, type, root}, comm, stream);
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return call({Kind::kSend, send, nullptr, count, type, peer}, comm, stream);
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call({Kind::kReceive, nullptr, receive, count, type, peer}, comm, stream);
}
