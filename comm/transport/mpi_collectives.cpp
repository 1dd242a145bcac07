#include "comm/transport/mpi_collectives.h"

#include <cstring>
#include <memory>

#include "comm/transport/mpi_wire.h"
#include "src/core/error.h"
#include "src/core/mapped.h"
#include "src/device/copy.h"

namespace tandem {

// Host memory for messages of tensors in GPU memory: MPI need not know of GPUs. It is page-locked:
// then a copy is one transfer, and the host waits once. With other memory CUDA would cut each copy
// into pieces and wait for every piece.
class MpiCollectives::Staging {
 public:
  // The tensor itself if it is in host memory; otherwise host() returns a copy, and room() memory
  // for its elements.
  Tensor host(const Tensor& tensor) {
    if (tensor.device() == Device::kCpu) {
      return tensor;
    }
    Tensor host = room(tensor);
    copy(gpu().stream, tensor, host);
    gpu().stream.synchronize();
    return host;
  }
  Tensor room(const Tensor& tensor) {
    return tensor.device() == Device::kCpu
               ? tensor
               : Tensor::empty(gpu().memory, tensor.shape(), tensor.dtype(), MemoryClass::kStaging);
  }
  // to = host, unless they are the same memory.
  void assign(const Tensor& host, const Tensor& to) {
    if (to.device() != Device::kCpu) {
      copy(gpu().stream, host, to);
      gpu().stream.synchronize();
    } else if (host.raw() != to.raw()) {
      std::memcpy(to.raw(), host.raw(), static_cast<size_t>(to.bytes()));
    }
  }

 private:
  struct Gpu {
    Stream stream = Stream::background(Device::kCuda);
    Memory memory = Memory::pinned();  // after the stream, which chooses the GPU for this thread
  };
  Gpu& gpu() {
    if (!gpu_) {
      gpu_ = std::make_unique<Gpu>();
    }
    return *gpu_;
  }
  std::unique_ptr<Gpu> gpu_;
};

MpiCollectives::MpiCollectives(MpiQueue queue)
    : MpiCollectives(std::move(queue), std::make_shared<Staging>(), nullptr) {}

void MpiCollectives::start(MpiKind kind, Traffic traffic, int64_t bytes, Work work) {
  collectives_ += traffic != Traffic::kControl;
  queue_.start(kind, traffic, bytes,
               [staging = staging_, work = std::move(work)](Ring& ring) { work(ring, *staging); });
}

void MpiCollectives::all_reduce(const Tensor& inout, Traffic traffic) {
  require_sum("all_reduce", inout.dtype());
  start(MpiKind::kAllReduce, traffic, inout.bytes(), [inout](Ring& ring, Staging& staging) {
    const Tensor host = staging.host(inout);
    ring.all_reduce(host.raw(), host.elements(), host.dtype());
    staging.assign(host, inout);
  });
}

void MpiCollectives::reduce_scatter(const Tensor& in, const Tensor& out) {
  require_sum("reduce_scatter", in.dtype());
  require(in.dtype() == out.dtype() && in.elements() == out.elements() * size(),
          "reduce_scatter: ", in.shape(), " into shards of ", out.shape());
  start(MpiKind::kReduceScatter, Traffic::kReduceScatter, in.bytes(),
        [in, out, part = rank()](Ring& ring, Staging& staging) {
          const Tensor host = staging.host(in);
          ring.reduce_scatter(host.raw(), host.elements(), host.dtype());
          staging.assign(host.slice(part * out.elements(), out.elements()), out);
        });
}

void MpiCollectives::all_gather(const Tensor& in, const Tensor& out) {
  require(in.dtype() == out.dtype() && out.elements() == in.elements() * size(),
          "all_gather: shards of ", in.shape(), " into ", out.shape());
  start(MpiKind::kAllGather, Traffic::kAllGather, out.bytes(),
        [in, out, part = rank()](Ring& ring, Staging& staging) {
          const Tensor own = staging.host(in), host = staging.room(out);
          staging.assign(own, host.slice(part * own.elements(), own.elements()));
          ring.all_gather(host.raw(), host.elements(), host.dtype());
          staging.assign(host, out);
        });
}

void MpiCollectives::all_to_all_v(const Tensor& in, std::span<const Range> sent, const Tensor& out,
                                  std::span<const Range> received, int64_t agreed_bytes) {
  require_chunks(in, sent, out, received);
  const auto in_bytes = [width = size_of(in.dtype())](std::span<const Range> chunks) {
    return mapped(chunks, [=](Range chunk) {
      return Range{chunk.begin * width, chunk.end * width};
    });
  };
  start(MpiKind::kAllToAll, Traffic::kAllToAll, agreed_bytes,
        [in, out, sent = in_bytes(sent), received = in_bytes(received)](Ring& ring,
                                                                        Staging& staging) {
          const Tensor from = staging.host(in), to = staging.room(out);
          ring.all_to_all(from.raw(), sent, to.raw(), received);
          staging.assign(to, out);
        });
}

std::unique_ptr<Collectives> MpiCollectives::split(std::span<const int> colors) {
  return std::unique_ptr<Collectives>(
      new MpiCollectives(queue_.split(colors), staging_, own_worker_));
}

std::unique_ptr<Collectives> MpiCollectives::split_apart(std::span<const int> colors) {
  auto worker = std::make_shared<Stream>(Stream::background(Device::kCpu));
  MpiQueue queue = queue_.split(colors, *worker);
  return std::unique_ptr<Collectives>(
      new MpiCollectives(std::move(queue), std::make_shared<Staging>(), std::move(worker)));
}

WireCount MpiCollectives::wire() const {
  WireCount count = queue_.sent();
  count.collectives = collectives_;
  return count;
}

}  // namespace tandem
