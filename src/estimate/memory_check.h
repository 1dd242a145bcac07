// Whether the training steps of a run fit into the memory that there is, before the first of them.
#pragma once

#include <vector>

#include "src/data/dataset.h"
#include "src/settings/config.h"

namespace tandem {

// Bytes for one of `ranks_here` ranks.
struct AvailableMemory {
  int64_t device = 0;  // CPU: as `host`. GPU: what no process has taken
  // What is available on the host, divided by the ranks, within this process's limit (ulimit -v).
  // CUDA's page-locked memory does not count towards ulimit -l.
  int64_t host = 0;
};
AvailableMemory available_memory(Device device, int ranks_here);

// Throws Error(kOutOfMemory) if this rank's steps need more memory of the device than `available`.
// The message says the need, what there is, and the largest micro-batch that fits. Throws
// Error(kConfig) if what train.offload brings to the host does not fit there; the message then says
// which stage fits. Without this check the system would kill the process in the middle of a step.
// `config`: with the bucket size of the run. node_of_rank: of all ranks of the job.
// Takes some 20 ms.
void check_memory(const Config& config, const DatasetInfo& data, int rank,
                  const std::vector<int>& node_of_rank, Device device,
                  const AvailableMemory& available);

}  // namespace tandem
