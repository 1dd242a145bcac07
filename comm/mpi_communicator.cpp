#include "comm/mpi_communicator.h"

#include <cstring>
#include <optional>

#include "comm/mpi_wire.h"
#include "src/core/copy.h"
#include "src/core/error.h"

namespace tandem {

namespace {

// Host memory in the place of a GPU's while messages pass: MPI itself knows nothing of GPUs. It is
// page-locked: a copy is then one transfer, and the host waits once for each, where CUDA would cut
// a copy to or from other memory into pieces and wait itself.
class Staging {
 public:
  // The tensor itself when it is in host memory; otherwise a copy, or room for its elements.
  Tensor host(const Tensor& tensor) {
    return tensor.device() == Device::kCpu ? tensor : copied(gpu().stream, tensor, gpu().memory);
  }
  Tensor room(const Tensor& tensor) {
    return tensor.device() == Device::kCpu
               ? tensor
               : Tensor::empty(gpu().memory, tensor.shape(), tensor.dtype(), MemoryClass::kStaging);
  }
  // Writes what these gave back to where it came from.
  void put_back(const Tensor& host, const Tensor& tensor) {
    if (tensor.device() != Device::kCpu) {
      copy(gpu().stream, host, tensor);
      gpu().stream.synchronize();
    }
  }

 private:
  struct Gpu {
    Stream stream = Stream::background(Device::kCuda);
    Memory memory = Memory::pinned();  // after the stream, which chooses the GPU for this thread
  };
  Gpu& gpu() {
    if (!gpu_) {
      gpu_.emplace();
    }
    return *gpu_;
  }
  std::optional<Gpu> gpu_;
};

void require_sum(const char* collective, DType dtype) {
  require(dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI64,
          [&] { return str(collective, ": cannot add ", name_of(dtype)); });
}

}  // namespace

// All splits share one staging memory: the worker does one thing at a time.
struct MpiCommunicator::Channel {
  Channel(std::unique_ptr<MpiWire> wire_, std::shared_ptr<Staging> staging_)
      : wire(std::move(wire_)), staging(std::move(staging_)) {}

  std::unique_ptr<MpiWire> wire;
  std::shared_ptr<Staging> staging;
  Ring ring{*wire};
};

MpiCommunicator::MpiCommunicator(Stream& worker, const std::atomic<double>& timeout_s)
    : worker_(worker) {
  worker_.submit([&] {
    channel_ =
        std::make_shared<Channel>(MpiWire::of_the_job(timeout_s), std::make_shared<Staging>());
  });
  worker_.synchronize();
}

MpiCommunicator::MpiCommunicator(Stream& worker, std::shared_ptr<Channel> channel)
    : worker_(worker), channel_(std::move(channel)) {}

MpiCommunicator::~MpiCommunicator() = default;

int MpiCommunicator::rank() const { return channel_->wire->rank(); }
int MpiCommunicator::size() const { return channel_->wire->size(); }

void MpiCommunicator::start(MpiKind kind, Traffic traffic, int64_t bytes, Work work) {
  collectives_ += traffic != Traffic::kControl;
  worker_.submit([channel = channel_, kind, traffic, bytes, work = std::move(work)] {
    channel->wire->begin(kind, traffic, bytes);
    work(*channel);
  });
}

void MpiCommunicator::run(MpiKind kind, int64_t bytes, Work work) {
  start(kind, Traffic::kControl, bytes, std::move(work));
  worker_.synchronize();
}

void MpiCommunicator::all_reduce(const Tensor& inout, Traffic traffic) {
  require_sum("all_reduce", inout.dtype());
  start(MpiKind::kAllReduce, traffic, inout.bytes(), [inout](Channel& channel) {
    const Tensor host = channel.staging->host(inout);
    channel.ring.all_reduce(host.raw(), host.elements(), host.dtype());
    channel.staging->put_back(host, inout);
  });
}

void MpiCommunicator::reduce_scatter(const Tensor& in, const Tensor& out) {
  require_sum("reduce_scatter", in.dtype());
  require(in.dtype() == out.dtype() && in.elements() == out.elements() * size(),
          [&] { return str("reduce_scatter: ", in.shape(), " into parts of ", out.shape()); });
  start(MpiKind::kReduceScatter, Traffic::kReduceScatter, in.bytes(),
        [in, out, part = rank()](Channel& channel) {
          const Tensor host = channel.staging->host(in);
          channel.ring.reduce_scatter(host.raw(), host.elements(), host.dtype());
          const Tensor sum = host.slice(part * out.elements(), out.elements());
          if (out.device() != Device::kCpu) {
            channel.staging->put_back(sum, out);
          } else if (sum.raw() != out.raw()) {
            std::memcpy(out.raw(), sum.raw(), static_cast<size_t>(out.bytes()));
          }
        });
}

void MpiCommunicator::all_gather(const Tensor& in, const Tensor& out) {
  require(in.dtype() == out.dtype() && out.elements() == in.elements() * size(),
          [&] { return str("all_gather: parts of ", in.shape(), " into ", out.shape()); });
  start(MpiKind::kAllGather, Traffic::kAllGather, out.bytes(),
        [in, out, part = rank()](Channel& channel) {
          const Tensor own = channel.staging->host(in), host = channel.staging->room(out);
          std::byte* place = host.raw() + part * own.bytes();
          if (place != own.raw()) {
            std::memcpy(place, own.raw(), static_cast<size_t>(own.bytes()));
          }
          channel.ring.all_gather(host.raw(), host.elements(), host.dtype());
          channel.staging->put_back(host, out);
        });
}

void MpiCommunicator::all_to_all(const Tensor& in, const Tensor& out) {
  require(in.dtype() == out.dtype() && in.elements() == out.elements() &&
              in.elements() % size() == 0 && (in.bytes() == 0 || in.raw() != out.raw()),
          [&] {
            return str("all_to_all: ", in.shape(), " into ", out.shape(), ", ", size(), " parts");
          });
  start(MpiKind::kAllToAll, Traffic::kAllToAll, in.bytes(), [in, out](Channel& channel) {
    const Tensor from = channel.staging->host(in), to = channel.staging->room(out);
    channel.ring.all_to_all(from.raw(), to.raw(), in.bytes());
    channel.staging->put_back(to, out);
  });
}

void MpiCommunicator::broadcast(const Tensor& inout, int root) {
  require(root >= 0 && root < size(), [&] { return str("broadcast: there is no rank ", root); });
  start(MpiKind::kBroadcast, Traffic::kBroadcast, inout.bytes(), [inout, root](Channel& channel) {
    const bool gives = channel.wire->rank() == root;
    const Tensor host = gives ? channel.staging->host(inout) : channel.staging->room(inout);
    channel.ring.broadcast(host.raw(), host.bytes(), root);
    if (!gives) {
      channel.staging->put_back(host, inout);
    }
  });
}

std::unique_ptr<Communicator> MpiCommunicator::split(std::span<const int> colors) {
  require(static_cast<int>(colors.size()) == size(), "split: there is not one color for each rank");
  barrier();  // has a deadline, which MPI_Comm_split has not
  std::shared_ptr<Channel> part;
  worker_.submit(
      [&] { part = std::make_shared<Channel>(channel_->wire->split(colors), channel_->staging); });
  worker_.synchronize();
  return std::unique_ptr<Communicator>(new MpiCommunicator(worker_, std::move(part)));
}

void MpiCommunicator::set_nodes(std::span<const int> node_of_rank) {
  require(static_cast<int>(node_of_rank.size()) == size(),
          "set_nodes: there is not one node for each rank");
  worker_.submit([&] { channel_->wire->set_nodes(node_of_rank); });
  worker_.synchronize();
}

std::vector<double> MpiCommunicator::sum(std::span<const double> values) {
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  require(bytes <= kLargestMessage, "sum: too many values for a control message");
  std::vector<std::string> all;
  run(MpiKind::kSum, bytes, [&](Channel& channel) {
    const std::string own(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    all = channel.ring.exchange(own, std::vector<int64_t>(static_cast<size_t>(size()), bytes));
  });
  std::vector<double> total(values.size(), 0.0);
  for (const std::string& one : all) {
    for (size_t i = 0; i < total.size(); ++i) {
      double value = 0;
      std::memcpy(&value, one.data() + i * sizeof value, sizeof value);
      total[i] += value;
    }
  }
  return total;
}

std::string MpiCommunicator::broadcast(std::string text, int root) {
  require(root >= 0 && root < size(), [&] { return str("broadcast: there is no rank ", root); });
  run(MpiKind::kHandOut, static_cast<int64_t>(text.size()),
      [&](Channel& channel) { text = channel.ring.hand_out(std::move(text), root); });
  return text;
}

std::vector<std::string> MpiCommunicator::all_gather(const std::string& text) {
  std::vector<std::string> all;
  run(MpiKind::kExchange, static_cast<int64_t>(text.size()),
      [&](Channel& channel) { all = channel.ring.exchange(text); });
  return all;
}

void MpiCommunicator::barrier() {
  // One byte each way: an empty message would not be sent.
  run(MpiKind::kBarrier, 1, [this](Channel& channel) {
    channel.ring.exchange("b", std::vector<int64_t>(static_cast<size_t>(size()), 1));
  });
}

WireCount MpiCommunicator::wire() const {
  WireCount count = channel_->wire->sent();
  count.collectives = collectives_;
  return count;
}

}  // namespace tandem
