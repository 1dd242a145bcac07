// Predicts the memory, traffic and time of a training step without training. This is a dry run of
// the real step (TrainingStep), in which the stream, the memory and the collectives only count what
// they are asked to do. So no formula for the size of a model or of a ZeRO stage is needed.
//
// Memory and bytes between ranks are exact for the code that runs; times follow from assumed rates,
// or from measured links.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "comm/transport/dry_collectives.h"
#include "src/data/dataset.h"
#include "src/device/memory.h"
#include "src/machine/gpu_table.h"
#include "src/settings/config.h"

namespace tandem {

// One rank's device and its links.
struct Hardware {
  std::string name{};  // "a100-40", "cpu"
  Device device = Device::kCpu;
  int64_t memory_bytes = 0;    // for tensors
  int64_t reserved_bytes = 0;  // in addition, for CUDA, cuBLASLt and NCCL
  double peak_flops = 0;       // FLOP/s that count as an MFU of 1
  Speed speed{};               // rates that kernels reach
  std::string basis{};         // what the rate of products is a share of; empty: no table
  Network network{};
  bool measured_links = false;  // `network` is measured, not assumed
};

// `gpu` is null for this machine's CPU, shared by `ranks_here` ranks. Its matrix product is then
// timed, which takes about 50 ms.
Hardware hardware_of(const GpuModel* gpu, const Config& config, int ranks_here);

struct Job {
  int ranks = 1;
  int node_size = 1;  // ranks a node; divides `ranks`
  Hardware hardware{};
  int64_t document_length = 0;  // the mean, with data.windows = documents; 0: one fills a window
};

struct Estimate {
  // Of the rank with the largest peak:
  int64_t peak_bytes = 0;
  int64_t reserved_bytes = 0;                            // with free blocks that the pool keeps
  std::array<int64_t, kMemoryClasses> class_bytes = {};  // each class at its own peak
  int64_t blocks = 0;                                    // that its pool took from the system
  int64_t checkpoint_bytes = 0;  // host memory for the copy that a checkpoint is written from
  int64_t host_bytes = 0;        // host memory for what train.offload brings there
  // Of one step:
  WireCount::Bytes wire{};    // payload that the busiest rank sends
  double flops = 0;           // executed by all ranks, recomputation included
  double model_flops = 0;     // needed by the model, on all ranks
  double step_s = 0;          // of the slowest rank, without exchanges of islands
  double exposed_s = 0;       // its time of waiting for communication
  int64_t copied_bytes = 0;   // between its device and the host, each way, because of train.offload
  double exposed_copy_s = 0;  // its time of waiting for these copies and what follows them
  double mfu = 0;
  // What an exchange of islands adds to a step, or to several if it takes effect later; 0 without.
  WireCount::Bytes sync_wire{};
  double sync_s = 0;
};

// A message if estimates of this job would take minutes. `config` must be free of problems.
std::vector<std::string> too_long(const Config& config, int ranks);

// The estimate of one step, after the first steps of the job: later steps are all alike. `config`
// must be free of problems (problems_of). Errors of the model or the store (kConfig, kData) pass
// through.
Estimate estimate(const Config& config, const DatasetInfo& data, const Job& job);

// The same figures of one rank, but only those of memory, without class_bytes. Quicker than
// estimate(): of the micro-batches of a step only a few are run.
Estimate memory_of_rank(const Config& config, const DatasetInfo& data, const Job& job, int rank);

// The largest micro-batch whose peak is at most hardware.memory_bytes, whatever the global batch of
// `config`. Tries at most kMostSamples samples. 0: not even one sample fits.
inline constexpr int64_t kMostSamples = 1 << 16;
int64_t largest_micro_batch(const Config& config, const DatasetInfo& data, const Job& job);

// The largest micro-batch up to `most` that divides a rank's share of the global batch; 0: none.
int64_t usable_micro_batch(const Config& config, const Job& job, int64_t most);

}  // namespace tandem
