#include "comm/transport/nccl_collectives.h"

#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>

#include "comm/transport/launcher.h"
#include "comm/transport/nccl_stream.h"
#include "comm/transport/ring.h"
#include "src/core/error.h"
#include "src/device/copy.h"
#include "src/device/cuda.h"
#include "src/device/cuda_check.h"
#include "src/device/ranks/agreement.h"

namespace tandem {

namespace {

ncclDataType_t nccl_type(DType dtype) {
  constexpr std::array kTypes = {ncclFloat32, ncclFloat64, ncclBfloat16, ncclFloat16,
                                 ncclInt32,   ncclInt64,   ncclUint8};  // by DType
  static_assert(kTypes.size() == static_cast<size_t>(DType::kU8) + 1);
  return kTypes[static_cast<size_t>(dtype)];
}

void require_on_gpu(const char* collective, const Tensor& tensor) {
  require(tensor.device() == Device::kCuda, collective, " over NCCL: ", tensor.shape(),
          " is in host memory");
}

// Names the GPU in use by its host and bus address: the same number can mean another GPU in another
// process.
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
void require_own_gpus(Control& control) {
  const std::vector<std::string> gpus = control.all_gather(gpu_in_use());
  for (size_t rank = 1; rank < gpus.size(); ++rank) {
    const auto first = std::find(gpus.begin(), gpus.end(), gpus[rank]);
    if (const auto other = first - gpus.begin(); other != static_cast<int64_t>(rank)) {
      throw AgreedError(
          ExitCode::kConfig, "ranks ", other, " and ", rank, " both use ", gpus[rank],
          ": a host has more ranks than GPUs; start fewer, or let ranks share a GPU with "
          "--dist.backend mpi, which passes messages through the host");
    }
  }
}

// Calls f(first, count) for the pieces of n elements that each fit one NCCL call; stops at the
// first failure.
template <class F>
ncclResult_t in_pieces(int64_t n, int64_t largest, F f) {
  ncclResult_t result = ncclSuccess;
  for (int64_t first = 0; first < n && !is_failure(result); first += largest) {
    result = f(first, std::min(largest, n - first));
  }
  return result;
}

// The same for each rank's shard of a tensor, with that rank as the root.
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

NcclCollectives::NcclCollectives(Control& control, const std::atomic<double>& timeout_s,
                                 int64_t largest_count)
    : control_(control),
      largest_count_(largest_count),
      group_(control.rank(), control.size()),
      nccl_(std::make_shared<NcclStream>(timeout_s)),
      stream_(std::make_shared<Stream>(Stream::background(Device::kCuda))),
      exceptions_(std::uncaught_exceptions()) {
  require_own_gpus(control_);
  // Were a kernel loaded beside a collective, its load could wait for that collective, and so for
  // another rank, whose host may wait in the same way.
  cuda::load_kernels();
  comm_ = nccl_->join(control_);
}

NcclCollectives::NcclCollectives(const NcclCollectives& all, std::shared_ptr<Stream> stream,
                                 std::span<const int> colors, bool is_apart)
    : own_control_(all.control_.split(colors)),
      control_(*own_control_),
      largest_count_(all.largest_count_),
      group_(all.group_.split(colors)),
      nccl_(all.nccl_),
      stream_(std::move(stream)),
      exceptions_(std::uncaught_exceptions()),
      comm_(is_apart ? nccl_->join(control_)
                     : nccl_->split(all.comm_, colors[all.rank()], all.rank())) {}

// During an exception a rank must not wait for others.
NcclCollectives::~NcclCollectives() {
  nccl_->leave(comm_, std::uncaught_exceptions() > exceptions_);
}

std::unique_ptr<Collectives> NcclCollectives::split(std::span<const int> colors) {
  return std::unique_ptr<Collectives>(new NcclCollectives(*this, stream_, colors, false));
}

std::unique_ptr<Collectives> NcclCollectives::split_apart(std::span<const int> colors) {
  auto stream = std::make_shared<Stream>(Stream::background(Device::kCuda));
  return std::unique_ptr<Collectives>(new NcclCollectives(*this, std::move(stream), colors, true));
}

void NcclCollectives::before_graph(Stream& compute) { nccl_->before_graph(compute); }

void NcclCollectives::add_graph(const Event& done) {
  nccl_->add_graph(group_, flight_group_, ++number_, done);
}

// Counts what is called now, or what a graph will do at each launch.
WireCount& NcclCollectives::counter() { return stream().is_captured() ? wire_of_graph_ : wire_; }

void NcclCollectives::wait(const Event& event) { nccl_->wait(event); }

// The NCCL calls in calls(comm, stream) are one NCCL group. `to_next`: the bytes that this rank
// sends to the next one in a ring.
template <class F>
void NcclCollectives::start(const char* name, Traffic traffic, int64_t to_next, int64_t bytes,
                            F calls) {
  WireCount& wire = counter();
  wire.add(traffic, group_.is_away(group_.next()), to_next);
  wire.collectives += traffic != Traffic::kControl;
  nccl_->start(comm_, *stream_, group_, flight_group_, name, bytes, ++number_,
               [&] { return calls(comm_, stream().handle()); });
}

void NcclCollectives::all_reduce(const Tensor& inout, Traffic traffic) {
  require_sum("all_reduce", inout.dtype());
  require_on_gpu("all_reduce", inout);
  const int64_t n = inout.elements(), width = size_of(inout.dtype());
  const RingChunks parts{n, size()};
  const int64_t sent = (2 * n - parts.count(rank()) - parts.count(group_.next())) * width;
  start("all_reduce", traffic, sent, inout.bytes(), [&](auto comm, auto stream) {
    return in_pieces(n, largest_count_, [&](int64_t first, int64_t count) {
      std::byte* data = inout.raw() + first * width;
      return ncclAllReduce(data, data, static_cast<size_t>(count), nccl_type(inout.dtype()),
                           ncclSum, comm, stream);
    });
  });
}

// A tensor that is too long for one ncclReduceScatter cannot simply be cut, because every call
// would assign shards to ranks anew. Then each rank's shard is reduced to that rank piece by piece.
void NcclCollectives::reduce_scatter(const Tensor& in, const Tensor& out) {
  require_sum("reduce_scatter", in.dtype());
  require_on_gpu("reduce_scatter", in);
  require_on_gpu("reduce_scatter", out);
  require(in.dtype() == out.dtype() && in.elements() == out.elements() * size(),
          "reduce_scatter: ", in.shape(), " into shards of ", out.shape());
  const int64_t n = out.elements(), width = size_of(in.dtype());
  const ncclDataType_t type = nccl_type(in.dtype());
  const int64_t sent = (size() - 1) * out.bytes();
  start("reduce_scatter", Traffic::kReduceScatter, sent, in.bytes(), [&](auto comm, auto stream) {
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

void NcclCollectives::all_gather(const Tensor& in, const Tensor& out) {
  require_on_gpu("all_gather", in);
  require_on_gpu("all_gather", out);
  require(in.dtype() == out.dtype() && out.elements() == in.elements() * size(),
          "all_gather: shards of ", in.shape(), " into ", out.shape());
  const int64_t n = in.elements(), width = size_of(in.dtype());
  const ncclDataType_t type = nccl_type(in.dtype());
  const int64_t sent = (size() - 1) * in.bytes();
  start("all_gather", Traffic::kAllGather, sent, out.bytes(), [&](auto comm, auto stream) {
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

void NcclCollectives::all_to_all_v(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                                   std::span<const Range> received, int64_t agreed_bytes) {
  require_on_gpu("all_to_all", in);
  require_on_gpu("all_to_all", out);
  require_chunks(in, sent, out, received);
  const ncclDataType_t type = nccl_type(in.dtype());
  const int64_t width = size_of(in.dtype());
  const Range own = sent[rank()];
  copy(stream(), in.slice(own.begin, own.count()), out.slice(received[rank()].begin, own.count()));
  start("all_to_all", Traffic::kAllToAll, 0, agreed_bytes, [&](auto comm, auto stream) {
    ncclResult_t result = ncclSuccess;
    const auto messages = [&](int peer, std::byte* data, Range chunk, auto call) {
      if (!is_failure(result)) {
        result = in_pieces(chunk.count(), largest_count_, [&](int64_t first, int64_t count) {
          return call(data + (chunk.begin + first) * width, static_cast<size_t>(count), type, peer,
                      comm, stream);
        });
      }
    };
    for (int distance = 1; distance < size(); ++distance) {
      const int to = (rank() + distance) % size(), from = (rank() + size() - distance) % size();
      counter().add(Traffic::kAllToAll, group_.is_away(to), sent[to].count() * width);
      messages(to, in.raw(), sent[to], ncclSend);
      messages(from, out.raw(), received[from], ncclRecv);
    }
    return result;
  });
}

WireCount NcclCollectives::wire() const {
  WireCount count = wire_;
  count.add(wire_of_graph_, nccl_->launches());
  return own_control_ ? count += own_control_->wire() : count;
}

}  // namespace tandem
