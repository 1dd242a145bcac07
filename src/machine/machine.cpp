#include "src/machine/machine.h"

#include "comm/link_probe.h"
#include "comm/transport/nccl_collectives.h"
#include "src/core/formatted.h"
#include "src/device/cuda.h"
#include "src/device/dispatch.h"
#include "src/device/ranks/agreement.h"
#include "src/machine/gpu_table.h"

namespace tandem {

namespace {

// Chooses the GPU of this process. A launcher may show each rank one GPU only, its own. Whether two
// ranks have the same GPU is known once all have chosen.
Stream open_device(const RunConfig& run, const DistConfig& dist, World& world) {
  world.set_timeout_s(dist.timeout_s > 0 ? dist.timeout_s : DistConfig::kFirstTimeout_s);
  use_cpu_share(run.threads, world.local_size());
  Device device = Device::kCpu;
  agree(world.control(), [&] {
    device = device_of(run);
    if constexpr (kHasCuda) {
      if (device == Device::kCuda) {
        return cuda::use_device(world.local_rank() % cuda::device_count());
      }
    }
    if (dist.backend == Backend::kNccl) {
      fail(ExitCode::kConfig, "dist.backend = nccl moves GPU memory, and there is no GPU on ",
           world.host(), "; use dist.backend = auto or mpi");
    }
  });
  return Stream::compute(device);
}

}  // namespace

Device device_of(const RunConfig& run) {
  if constexpr (kHasCuda) {
    if (run.device != Device::kCpu && cuda::device_count() > 0) {
      return Device::kCuda;
    }
    if (run.device == Device::kCuda) {
      fail(ExitCode::kConfig, run.device_key,
           " = cuda, and CUDA finds no GPU here: ", cuda::why_no_device(), "; use ", run.device_key,
           " = cpu, or install a driver");
    }
  } else if (run.device == Device::kCuda) {
    fail(ExitCode::kConfig, run.device_key, " = cuda: this build has no CUDA; use ", run.device_key,
         " = cpu");
  }
  return Device::kCpu;
}

Machine::Machine(const RunConfig& run, const DistConfig& dist, World& world)
    : stream(open_device(run, dist, world)),
      memory(stream),
      scratch(memory.scratch()),
      staging(stream.device() == Device::kCpu ? memory : Memory::pinned()) {
  if constexpr (kHasCuda) {
    if (dist.over_nccl(stream.device()) && (world.size() > 1 || dist.backend == Backend::kNccl)) {
      nccl_ = std::make_unique<NcclCollectives>(world.control(), world.timeout_s());
    }
  }
  // What the compute stream waits for may come from other ranks.
  Collectives& ranks = nccl_ ? *nccl_ : world.collectives();
  stream.synchronize_by([&ranks](const Event& event) { ranks.wait(event); });
  hosts_ = world.control().all_gather(world.host());
  node_of_rank_ = nodes_of(hosts_, dist.ranks_a_node());
  mesh_ = std::make_shared<Mesh>(world.control(), ranks, memory, node_of_rank_, dist.shard,
                                 mesh_shape(dist));
  if (dist.min_gb_s > 0) {
    // All ranks measure together, whatever axes they have, so that they agree and use all links.
    const Group all(world.control(), ranks, memory, std::vector<int>(hosts_.size(), 0));
    bus_gb_s_ = require_bus_bandwidth(all, stream, dist.min_gb_s);
  }
}

double Machine::peak_flops(DType dtype) const {
  if constexpr (kHasCuda) {
    if (device() == Device::kCuda) {
      const GpuModel* gpu = gpu_with_cuda_name(cuda::device_name());
      return gpu ? gpu->peak_flops(dtype) : 0;
    }
  }
  static const double rate = measure_gemm_rate();
  return rate;
}

std::string Machine::description() const {
  if constexpr (kHasCuda) {
    if (device() == Device::kCuda) {
      return str("cuda (", cuda::device_name(), "), ", nccl_ ? "nccl" : "mpi");
    }
  }
  const std::string threads = counted(cpu_threads(), "thread");
  if constexpr (kHasCuda) {
    if (cuda::device_count() == 0) {
      return "CPU (no GPU found), " + threads;
    }
  }
  return "CPU, " + threads;
}

std::string Machine::sharing(const DistConfig& dist) const {
  const Group& all = mesh_->stage();
  const int size = all.size(), node = all.node_size();
  std::string text = counted(size, "rank");
  if (const Group* islands = mesh_->islands()) {
    text = str(islands->size(), " islands of ", text, ", which meet every ",
               counted(dist.sync_every, "step"));
    text += dist.sync_delay > 0 ? str(" with a delay of ", dist.sync_delay) : "";
  }
  if (node != size) {
    text += node > 0 ? str(", ", node, " on each node") : ", nodes of different sizes";
  }
  if (const Group* tensor = mesh_->tensor()) {
    text += str("; ", tensor->size(), " cut each layer");
    text += tensor->node_size() == tensor->size() ? "" : ", across nodes, which is slow";
  }
  if (all.parts() > 1) {
    text += str("; ZeRO stage ", dist.zero);
    if (dist.zero > 0) {
      text += all.replicas() > 1 ? " inside a node"
              : mesh_->islands() ? " over an island"
                                 : " over all ranks";
      text += mesh_->tensor() ? ", cut weights over " + counted(mesh_->data().parts(), "rank") : "";
    }
  }
  text += dist.reduce == Reduce::kExact ? "; exact sums" : "; ring sums";
  text += dist.wire_dtype != DType::kF32 ? str(", ", name_of(dist.wire_dtype), " on the wire") : "";
  text += dist.gather_int8 ? "; values gathered in int8" : "";
  return bus_gb_s_ > 0 ? str(text, "; bus bandwidth ", bus_gb_s_, " GB/s") : text;
}

std::string Machine::memory_at_rest(Offload offload) const {
  const auto used = [](const Memory& of) {
    std::vector<std::string> texts;
    for (MemoryClass memory_class : {MemoryClass::kParameters, MemoryClass::kGradients,
                                     MemoryClass::kMasters, MemoryClass::kOptimizer}) {
      if (const int64_t bytes = of.use(memory_class).bytes; bytes > 0) {
        texts.push_back(str(name_of(memory_class), " ", format_bytes(bytes)));
      }
    }
    return joined(texts);
  };
  if (offload == Offload::kNone) {
    return used(memory);
  }
  return used(memory) + (device() == Device::kCpu ? "; train.offload changes nothing on a CPU"
                                                  : "; in the host's memory " + used(staging));
}

}  // namespace tandem
