#include "comm/nccl_communicator.h"

#include <nccl.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <exception>

#include "comm/launcher.h"
#include "comm/patience.h"
#include "comm/ring.h"
#include "src/core/cuda_check.h"
#include "src/core/error.h"

namespace tandem {

namespace {

// Longer than any healthy goodbye.
constexpr double kFinish_s = 10;

struct Collective {
  const char* name;
  int64_t bytes, number;
  Event done = {};
};

bool is_failure(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

// A wrong call is this program's fault, everything else may be the machine's.
ExitCode exit_code_of(ncclResult_t result) {
  return result == ncclInvalidArgument || result == ncclInvalidUsage ? ExitCode::kInternal
                                                                     : ExitCode::kTemporary;
}

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBf16:
      return ncclBfloat16;
    case DType::kFp16:
      return ncclFloat16;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
    case DType::kU8:
      return ncclUint8;
  }
  fail(ExitCode::kInternal, "nccl_type: unknown dtype");
}

void require_sum(const char* collective, DType dtype) {
  require(dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBf16 ||
              dtype == DType::kFp16,
          [&] { return str(collective, ": cannot add ", name_of(dtype)); });
}

void require_on_gpu(const char* collective, const Tensor& tensor) {
  require(tensor.device() == Device::kCuda,
          [&] { return str(collective, " over NCCL: ", tensor.shape(), " is in host memory"); });
}

// The host, and the GPU in use by its place on the bus: numbers mean other GPUs to other processes.
std::string gpu_in_use() {
  int device = 0;
  cudaDeviceProp properties{};
  cuda::check(cudaGetDevice(&device));
  cuda::check(cudaGetDeviceProperties(&properties, device));
  char place[32] = {};
  std::snprintf(place, sizeof place, "%04x:%02x:%02x", properties.pciDomainID, properties.pciBusID,
                properties.pciDeviceID);
  return str("GPU ", place, " of host ", host_name());
}

// NCCL allows one rank per GPU.
void require_own_gpus(Communicator& control) {
  const std::vector<std::string> gpus = control.all_gather(gpu_in_use());
  for (size_t rank = 1; rank < gpus.size(); ++rank) {
    const auto first = std::find(gpus.begin(), gpus.end(), gpus[rank]);
    if (const auto other = first - gpus.begin(); other != static_cast<int64_t>(rank)) {
      fail(ExitCode::kConfig,
           str("ranks ", other, " and ", rank, " both use ", gpus[rank],
               ": a host has more ranks than GPUs; start fewer, or let ranks share a GPU with "
               "--dist.backend mpi, which passes messages through the host"));
    }
  }
}

// Throws on all ranks alike when the library does not work on rank 0.
ncclUniqueId agree_on_id(Communicator& control) {
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

}  // namespace

// Owns ncclComm_t, which works without blocking the host: what is slow or stuck in the library is
// seen by asking, against the deadline.
class NcclCommunicator::Nccl {
 public:
  Nccl(Communicator& control, const std::atomic<double>& timeout_s)
      : timeout_s_(timeout_s), rank_(control.rank()), size_(control.size()) {
    require_own_gpus(control);
    const ncclUniqueId id = agree_on_id(control);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    settle(ncclCommInitRankConfig(&comm_, size_, id, rank_, &config),
           [] { return "start of NCCL"; });
  }

  // A rank on its way out of an error must not wait for others.
  ~Nccl() {
    if (!comm_) {
      return;
    }
    if (std::uncaught_exceptions() > exceptions_ || is_failure(ncclCommFinalize(comm_))) {
      ncclCommAbort(comm_);
      return;
    }
    ncclResult_t state = ncclInProgress;
    for (const Patience patience; patience.waited_s() < kFinish_s;) {
      if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess || state != ncclInProgress) {
        break;
      }
      patience.pause(patience.waited_s());
    }
    static_cast<void>(state == ncclSuccess ? ncclCommDestroy(comm_) : ncclCommAbort(comm_));
  }

  // Enqueues a collective: calls(comm, stream) makes one NCCL group. Without data there is none.
  template <class F>
  void start(Collective collective, Stream& stream, F calls) {
    require_alive();
    forget_finished();
    if (collective.bytes > 0) {
      ncclGroupStart();
      const ncclResult_t called = calls(comm_, stream.handle());
      const ncclResult_t launched = ncclGroupEnd();
      settle(is_failure(called) ? called : launched, [&] { return place(collective); });
    }
    collective.done = stream.record();
    pending_.push_back(std::move(collective));
  }

  // Looks after the collectives while there are any; without them nobody can hold the event up.
  void wait(const Event& event) {
    require_alive();
    forget_finished();
    for (Patience patience; !pending_.empty() && !event.reached();) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
      if (is_failure(asked) || is_failure(state)) {
        abort(is_failure(asked) ? asked : state, place(pending_.front()));
      }
      const double waited = patience.waited_s();
      if (waited > timeout_s_) {
        abort_silent(place(pending_.front()));
      }
      patience.pause(waited);
      if (forget_finished()) {
        patience = {};
      }
    }
    event.synchronize();
  }

 private:
  std::string place(const Collective& collective) const {
    return str(collective.name, " of ", collective.bytes, " bytes (collective ", collective.number,
               " of this run, rank ", rank_, " of ", size_, ")");
  }

  // Waits until the library has done its part of a call on the host. what() names the call.
  template <class F>
  void settle(ncclResult_t result, F what) {
    for (const Patience patience; result == ncclInProgress;) {
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
      result = is_failure(asked) ? asked : result;
      const double waited = patience.waited_s();
      if (result == ncclInProgress && waited > timeout_s_) {
        abort_silent(what());
      }
      patience.pause(waited);
    }
    if (is_failure(result)) {
      abort(result, what());
    }
  }

  // True when something has.
  bool forget_finished() {
    const size_t before = pending_.size();
    while (!pending_.empty() && pending_.front().done.reached()) {
      pending_.pop_front();
    }
    return pending_.size() < before;
  }

  void require_alive() const {
    if (!comm_) {
      throw *error_;
    }
  }

  [[noreturn]] void abort(ncclResult_t result, const std::string& what) {
    abort(exit_code_of(result),
          str(what, ": NCCL: ", ncclGetErrorString(result), " (", ncclGetLastError(comm_), ")"));
  }
  [[noreturn]] void abort_silent(const std::string& what) {
    abort(ExitCode::kTemporary,
          str(what, ": nothing moved for ", timeout_s_.load(),
              " s; a rank is lost, stuck or very late; start the job again from its last "
              "checkpoint, or raise dist.timeout_s"));
  }
  // For good: later calls throw the same.
  [[noreturn]] void abort(ExitCode code, const std::string& message) {
    error_ = std::make_unique<Error>(code, message);
    pending_.clear();
    ncclCommAbort(comm_);
    comm_ = nullptr;
    throw *error_;
  }

  const std::atomic<double>& timeout_s_;
  int rank_, size_;
  int exceptions_ = std::uncaught_exceptions();
  ncclComm_t comm_ = nullptr;
  std::deque<Collective> pending_;
  std::unique_ptr<Error> error_;
};

namespace {

// f(first, count) for the pieces of n elements that fit one call; ends at the first failure.
template <class F>
ncclResult_t in_pieces(int64_t n, int64_t largest, F f) {
  ncclResult_t result = ncclSuccess;
  for (int64_t first = 0; first < n && !is_failure(result); first += largest) {
    result = f(first, std::min(largest, n - first));
  }
  return result;
}

// The same for each rank in turn as the root, where a tensor has a part for every rank.
template <class F>
ncclResult_t in_pieces_of_parts(int ranks, int64_t n, int64_t largest, F f) {
  ncclResult_t result = ncclSuccess;
  for (int root = 0; root < ranks && !is_failure(result); ++root) {
    result =
        in_pieces(n, largest, [&](int64_t first, int64_t count) { return f(root, first, count); });
  }
  return result;
}

}  // namespace

NcclCommunicator::NcclCommunicator(Communicator& control, const std::atomic<double>& timeout_s,
                                   int64_t largest_count)
    : control_(control),
      largest_count_(largest_count),
      stream_(Stream::background(Device::kCuda)),
      nccl_(std::make_unique<Nccl>(control, timeout_s)) {}

NcclCommunicator::~NcclCommunicator() = default;

void NcclCommunicator::wait(const Event& event) { nccl_->wait(event); }

void NcclCommunicator::all_reduce(const Tensor& inout) {
  require_sum("all_reduce", inout.dtype());
  require_on_gpu("all_reduce", inout);
  const int64_t n = inout.elements(), width = size_of(inout.dtype());
  const Parts parts{n, size()};
  payload_bytes_ += (2 * n - parts.count(rank()) - parts.count((rank() + 1) % size())) * width;
  nccl_->start({"all_reduce", inout.bytes(), ++collectives_}, stream_, [&](auto comm, auto stream) {
    return in_pieces(n, largest_count_, [&](int64_t first, int64_t count) {
      std::byte* data = inout.raw() + first * width;
      return ncclAllReduce(data, data, static_cast<size_t>(count), nccl_type(inout.dtype()),
                           ncclSum, comm, stream);
    });
  });
}

// What is too long for one call cannot be cut in its middle, which is a part of another rank: then
// each rank's part is reduced to it piece by piece.
void NcclCommunicator::reduce_scatter(const Tensor& in, const Tensor& out) {
  require_sum("reduce_scatter", in.dtype());
  require_on_gpu("reduce_scatter", in);
  require_on_gpu("reduce_scatter", out);
  require(in.dtype() == out.dtype() && in.elements() == out.elements() * size(),
          [&] { return str("reduce_scatter: ", in.shape(), " into parts of ", out.shape()); });
  const int64_t n = out.elements(), width = size_of(in.dtype());
  const ncclDataType_t type = nccl_type(in.dtype());
  payload_bytes_ += (size() - 1) * out.bytes();
  nccl_->start(
      {"reduce_scatter", in.bytes(), ++collectives_}, stream_, [&](auto comm, auto stream) {
        if (n <= largest_count_) {
          return ncclReduceScatter(in.raw(), out.raw(), static_cast<size_t>(n), type, ncclSum, comm,
                                   stream);
        }
        return in_pieces_of_parts(
            size(), n, largest_count_, [&](int root, int64_t first, int64_t count) {
              return ncclReduce(in.raw() + (root * n + first) * width, out.raw() + first * width,
                                static_cast<size_t>(count), type, ncclSum, root, comm, stream);
            });
      });
}

void NcclCommunicator::all_gather(const Tensor& in, const Tensor& out) {
  require_on_gpu("all_gather", in);
  require_on_gpu("all_gather", out);
  require(in.dtype() == out.dtype() && out.elements() == in.elements() * size(),
          [&] { return str("all_gather: parts of ", in.shape(), " into ", out.shape()); });
  const int64_t n = in.elements(), width = size_of(in.dtype());
  const ncclDataType_t type = nccl_type(in.dtype());
  payload_bytes_ += (size() - 1) * in.bytes();
  nccl_->start({"all_gather", out.bytes(), ++collectives_}, stream_, [&](auto comm, auto stream) {
    if (n <= largest_count_) {
      return ncclAllGather(in.raw(), out.raw(), static_cast<size_t>(n), type, comm, stream);
    }
    return in_pieces_of_parts(
        size(), n, largest_count_, [&](int root, int64_t first, int64_t count) {
          return ncclBroadcast(in.raw() + first * width, out.raw() + (root * n + first) * width,
                               static_cast<size_t>(count), type, root, comm, stream);
        });
  });
}

void NcclCommunicator::broadcast(const Tensor& inout, int root) {
  require(root >= 0 && root < size(), [&] { return str("broadcast: there is no rank ", root); });
  require_on_gpu("broadcast", inout);
  const bool is_last = (rank() + 1) % size() == root;  // along the ring: it passes nothing on
  payload_bytes_ += is_last ? 0 : inout.bytes();
  nccl_->start({"broadcast", inout.bytes(), ++collectives_}, stream_, [&](auto comm, auto stream) {
    return in_pieces(inout.elements(), largest_count_, [&](int64_t first, int64_t count) {
      std::byte* data = inout.raw() + first * size_of(inout.dtype());
      return ncclBroadcast(data, data, static_cast<size_t>(count), nccl_type(inout.dtype()), root,
                           comm, stream);
    });
  });
}

WireCount NcclCommunicator::wire() const {
  return {payload_bytes_, control_.wire().control_bytes, collectives_};
}

}  // namespace tandem
