// What a run computes on: a device with its compute stream and memory, and the mesh of its ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "comm/world.h"
#include "src/device/memory.h"
#include "src/device/stream.h"
#include "src/settings/config.h"

namespace tandem {

// The device that run.device means on this machine. Error kConfig, with CUDA's reason, if it asks
// for CUDA and there is no GPU.
Device device_of(const RunConfig& run);

// FLOP/s of the f32 matrix product of 1024 x 1024 operands on all threads of this process: the best
// of a few tries of about 10 ms each. When all ranks call it at the same time, it measures what one
// rank gets of the busy machine.
double measure_gemm_rate();

// The axes of a job's ranks.
inline MeshShape mesh_shape(const DistConfig& dist) {
  return {.islands = static_cast<int>(dist.islands), .tensor = static_cast<int>(dist.tensor)};
}

class Machine {
 public:
  // Collective. A rank takes the GPU with its local rank as number, modulo the number of GPUs that
  // it sees. With NCCL no two ranks may have the same GPU. Error kConfig if the settings ask for
  // something that the machine lacks. stream.synchronize() ends by dist.timeout_s when a rank is
  // lost.
  Machine(const RunConfig& run, const DistConfig& dist, World& world);

  Stream stream;
  Memory memory;   // of the stream's device
  Memory scratch;  // of it, for what begins and ends inside a step or a validation
  Memory staging;  // host memory that the device copies from and to; page-locked for a GPU
  Device device() const { return stream.device(); }
  // The ranks of an island hold the model together; dist.tensor of them cut it.
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }
  const std::vector<int>& node_of_rank() const { return node_of_rank_; }
  const std::vector<std::string>& hosts() const { return hosts_; }  // by rank
  // The peak FLOP/s of one rank's device in this type, for `mfu`. For a GPU, the dense peak of its
  // data sheet, or 0 if it is not listed. For a CPU, the measured rate of an f32 matrix product.
  double peak_flops(DType dtype) const;
  // Texts for the table at the start of a run:
  // "cuda (NVIDIA H200), nccl" or "CPU, 2 threads"; "CPU (no GPU found)" in a build for GPUs.
  std::string description() const;
  // "4 ranks, 2 on each node; 2 cut each layer; ZeRO stage 2 over all ranks, cut weights over 2
  // ranks; ring sums; bus bandwidth 47.6 GB/s", "2 islands of 4 ranks, which meet every 20 steps,
  // ..."
  std::string sharing(const DistConfig& dist) const;
  // Between steps: "parameters 4.0 MiB, gradients 4.0 MiB; in the host's memory masters 8.0 MiB".
  std::string memory_at_rest(Offload offload) const;

 private:
  std::vector<int> node_of_rank_;
  std::vector<std::string> hosts_;
  double bus_gb_s_ = 0;                // 0: not measured
  std::unique_ptr<Collectives> nccl_;  // null: the collectives of the world are used
  std::shared_ptr<Mesh> mesh_;         // shared: the communication thread may read it longer
};

}  // namespace tandem
