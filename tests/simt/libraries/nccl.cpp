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

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/simt/libraries/nccl_comm.h"
#include "tests/simt/simt.h"

using simt::Group;
using simt::Kind;
using simt::Operation;

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
  if (comm->launching || comm->split) {
    simt::fail_nccl("communicator used while its last call is in progress");
  }
}

bool takes_buffers() {
  constexpr size_t kBuffers = 1 << 20;  // what NCCL takes at least
  size_t free_bytes = 0, all_bytes = 0;
  ++simt::counters().nccl_buffers;
  return cudaMemGetInfo(&free_bytes, &all_bytes) == cudaSuccess && free_bytes >= kBuffers;
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
    open.group = std::make_shared<Group>(stream, comm->calls.load(), simt::launches().calls());
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
  if (!takes_buffers()) {
    return ncclUnhandledCudaError;
  }
  *comm = ncclComm::make(id, ranks, rank, config->splitShare == 1);
  return ncclInProgress;
}

// The ranks exchange messages of their own while no collective does. NCCL 2.28 returns success,
// though the split is not done and its communicator not there.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  const std::lock_guard lock(comm->mutex);
  require_ready(comm);
  if (color < 0 || config || !comm->groups.empty()) {
    simt::fail_nccl(
        "splits without a color, with other settings, or beside collectives are not emulated");
  }
  if (!comm->shares && !takes_buffers()) {
    return ncclUnhandledCudaError;
  }
  const ncclComm::Split::Member member = {color, key, simt::new_id()};
  const auto* bytes = reinterpret_cast<const std::byte*>(&member);
  *part = nullptr;
  comm->split.reset(new ncclComm::Split{part, {bytes, bytes + sizeof member}});
  simt::gather(*comm->wire, comm->ranks, comm->rank, comm->split->own, comm->split->members);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  std::shared_ptr<Group> group;
  {
    const std::lock_guard lock(comm->mutex);
    if (comm->state == ncclComm::kOver) {
      simt::fail_nccl("communicator used after its end");
    }
    comm->start_up();
    comm->finish_split();
    group = std::exchange(comm->launching, nullptr);
    const bool finishing = comm->state == ncclComm::kFinalized && !comm->groups.empty();
    *state =
        comm->state < ncclComm::kReady || finishing || comm->split ? ncclInProgress : ncclSuccess;
  }
  if (group) {
    cudaStreamCaptureStatus capture{};
    cudaStreamIsCapturing(group->stream(), &capture);
    const bool captured = capture != cudaStreamCaptureStatusNone;
    simt::enqueue_begun(
        group->stream(), "an NCCL group",
        [comm, group, captured] {
          auto launched = captured ? comm->again(*group) : group;
          comm->enqueue(launched);
          return [comm, launched] { return comm->poll(launched); };
        },
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
  simt::launches().close(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm) {
    const std::lock_guard lock(comm->mutex);
    comm->state = ncclComm::kOver;
    simt::launches().close(comm);
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
