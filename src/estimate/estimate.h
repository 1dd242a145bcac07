// What a training step will need and how long it will take, without training: a dry run of the step
// itself (TrainingStep) on a stream, a memory and collectives on which nothing happens but
// counting. There are no formulas of a model's or a ZeRO stage's size here.
//
// Memory and bytes between ranks are exact for the code that runs; times follow from stated rates.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "comm/transport/dry_collectives.h"
#include "src/data/dataset.h"
#include "src/device/memory.h"
#include "src/estimate/gpu_table.h"
#include "src/settings/config.h"

namespace tandem {

// One rank's device and its links.
struct Hardware {
  std::string name{};  // "a100-40", "cpu"
  Device device = Device::kCpu;
  int64_t memory_bytes = 0;    // what tensors may take
  int64_t reserved_bytes = 0;  // beside them: what CUDA, cuBLASLt and NCCL take
  double peak_flops = 0;       // what MFU refers to
  Speed speed{};               // what kernels reach
  Network network{};
};

// `gpu`: null for this machine's CPU, shared by `ranks_here` ranks, whose matrix product is timed
// (some 50 ms).
Hardware hardware_of(const GpuModel* gpu, const Config& config, int ranks_here);

struct Job {
  int ranks = 1;
  int node_size = 1;  // ranks a node; divides `ranks`
  Hardware hardware{};
};

struct Estimate {
  int64_t peak_bytes = 0;                                // of the largest rank, and
  std::array<int64_t, kMemoryClasses> class_bytes = {};  // its peaks by class, at their own times
  int64_t blocks = 0;  // ... and the blocks that its pool took from the system
  // Of one step.
  WireCount::Bytes wire{};  // payload that the busiest rank sends
  double flops = 0;         // that run, of all ranks, recomputation included
  double model_flops = 0;   // the model's own, of all ranks
  double step_s = 0;        // of the slowest rank
  double exposed_s = 0;     // ... in which it stands waiting for communication
  double mfu = 0;
};

// Of the job, step by step the same once it has begun. The configuration must be free of problems.
// Errors of the model or the store (kConfig, kData) pass through.
Estimate estimate(const Config& config, const DatasetInfo& data, const Job& job);

// The largest micro-batch whose peak is at most hardware.memory_bytes, for any global batch; at
// most kMostSamples are tried. 0: not even one sample fits.
inline constexpr int64_t kMostSamples = 1 << 16;
int64_t largest_micro_batch(const Config& config, const DatasetInfo& data, const Job& job);

}  // namespace tandem
