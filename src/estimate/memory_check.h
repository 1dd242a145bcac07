// Whether the training steps of a run fit into the memory that there is, before the first of them.
#pragma once

#include <vector>

#include "src/data/dataset.h"
#include "src/settings/config.h"

namespace tandem {

// Bytes for one of `ranks_here` ranks. CPU: what is available on the host, divided by the ranks.
// GPU: what no process has taken.
int64_t available_memory(Device device, int ranks_here);

// Throws Error(kOutOfMemory) if this rank's steps need more than `available` bytes. The message
// says the need, what there is, and the largest micro-batch that fits. Without this check the
// system would kill the process in the middle of a step. `config`: with the bucket size of the run.
// node_of_rank: of all ranks of the job.
// Takes some 20 ms.
void check_memory(const Config& config, const DatasetInfo& data, int rank,
                  const std::vector<int>& node_of_rank, Device device, int64_t available);

}  // namespace tandem
