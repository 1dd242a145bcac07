// Where a run computes and how its ranks talk: a device with its compute stream and memory, and the
// mesh of its ranks.
#pragma once

#include <memory>
#include <string>

#include "comm/mesh.h"
#include "comm/world.h"
#include "src/device/memory.h"
#include "src/device/stream.h"
#include "src/settings/config.h"

namespace tandem {

// The device that run.device means on this machine. Error kConfig, with CUDA's reason, when CUDA is
// asked for and there is none.
Device device_of(const RunConfig& run);

// The CPU threads of one of `ranks_here` ranks on a host.
void use_threads(const RunConfig& run, const DistConfig& dist, int ranks_here);

class Machine {
 public:
  // Collective. Takes GPU number local rank, modulo their number where ranks share GPUs
  // (dist.backend = mpi). Error kConfig when that is asked for which the machine lacks.
  Machine(const RunConfig& run, const DistConfig& dist, World& world);

  Stream stream;
  Memory memory;   // of the stream's device
  Memory staging;  // host memory that the device copies from and to; page-locked for a GPU
  Device device() const { return stream.device(); }
  // All ranks are one data group.
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }
  // The largest FLOP/s of one rank's device in this type, for `mfu`: a GPU's dense peak by its data
  // sheet, 0 for one that is not listed; the measured f32 matrix product on a CPU.
  double peak_flops(DType dtype) const;
  // For the table at the start of a run.
  std::string description()
      const;  // "cuda (NVIDIA H200), nccl", or "2 threads", with the reason when there is no GPU
  // "4 ranks, 2 on each node; ZeRO stage 2 over all ranks; ring sums"
  std::string sharing(const DistConfig& dist) const;
  std::string memory_at_rest() const;  // "parameters 4.0 MiB, gradients 4.0 MiB": between steps

 private:
  std::unique_ptr<Collectives> nccl_;  // null: the world's own
  std::shared_ptr<Mesh> mesh_;         // which the communication's thread may read longer
};

}  // namespace tandem
