#include "src/train/machine.h"

#include <array>

#include "comm/agreement.h"
#include "comm/nccl_communicator.h"
#include "src/core/cuda.h"
#include "src/core/dispatch.h"
#include "src/train/gemm_rate.h"

namespace tandem {

namespace {

// Dense peaks of data sheets, in FLOP/s; f32 without TF32.
struct Peak {
  std::string_view name;  // part of CUDA's name
  double f32, half;
};
constexpr std::array<Peak, 3> kPeaks = {
    {{"A100", 19.5e12, 312e12}, {"H100", 67e12, 989e12}, {"H200", 67e12, 989e12}}};

bool uses_nccl(const Config& config, Device device) {
  return device == Device::kCuda && config.dist.backend != "mpi";
}

// Makes this rank's GPU the process's; one message for all ranks when there are too few.
Stream open_device(const Config& config, World& world) {
  world.set_timeout_s(config.dist.timeout_s);
  use_cpu_share(config.run.threads, world.local_size());
  Device device = Device::kCpu;
  agree(world.communicator(), [&] {
    device = device_named(config.run.device);
    if constexpr (kHasCuda) {
      if (device == Device::kCuda) {
        const int gpus = cuda::device_count();
        if (uses_nccl(config, device) && world.size() > 1 && world.local_size() > gpus) {
          fail(ExitCode::kConfig,
               str(world.host(), " has ", gpus, gpus == 1 ? " GPU for " : " GPUs for ",
                   world.local_size(),
                   " ranks, and NCCL wants one each; start fewer ranks a node, or share GPUs with "
                   "dist.backend = mpi, which stages gradients through the host"));
        }
        cuda::use_device(world.local_rank() % gpus);
        return;
      }
    }
    claim_gemm_buffers();
  });
  return Stream::compute(device);
}

}  // namespace

Device device_named(const std::string& name) {
  if constexpr (kHasCuda) {
    if (name != "cpu" && cuda::device_count() > 0) {
      return Device::kCuda;
    }
    if (name == "cuda") {
      fail(ExitCode::kConfig,
           str("run.device = cuda, and CUDA finds no GPU here: ", cuda::why_no_device(),
               "; use run.device = cpu, or install a driver"));
    }
  }
  require(name != "cuda", "device_named: this build has no CUDA");
  return Device::kCpu;
}

Machine::Machine(const Config& config, World& world)
    : stream(open_device(config, world)),
      memory(stream),
      staging(stream.device() == Device::kCpu ? memory : Memory::pinned()),
      world_(world) {
  if constexpr (kHasCuda) {
    if (uses_nccl(config, stream.device()) && (world.size() > 1 || config.dist.backend == "nccl")) {
      communicator_ = std::make_unique<NcclCommunicator>(world.communicator(), world.timeout_s());
    }
  }
}

double Machine::peak_flops(DType dtype) const {
  if constexpr (kHasCuda) {
    if (device() == Device::kCuda) {
      const std::string name = cuda::device_name();
      for (const Peak& peak : kPeaks) {
        if (name.find(peak.name) != std::string::npos) {
          return dtype == DType::kF32 ? peak.f32 : peak.half;
        }
      }
      return 0;
    }
  }
  return measure_gemm_rate();
}

std::string Machine::description() const {
  if constexpr (kHasCuda) {
    if (device() == Device::kCuda) {
      return str("cuda (", cuda::device_name(), "), ", communicator_ ? "nccl" : "mpi");
    }
  }
  const std::string threads = str(cpu_threads(), cpu_threads() == 1 ? " thread" : " threads");
  if constexpr (kHasCuda) {
    if (cuda::device_count() == 0) {
      return str("no GPU (", cuda::why_no_device(), "); ", threads);
    }
  }
  return threads;
}

}  // namespace tandem
