#include "src/estimate/memory_check.h"

#include <algorithm>

#include "src/device/cuda.h"
#include "src/device/dispatch.h"
#include "src/estimate/estimate.h"
#include "src/estimate/host_memory.h"

namespace tandem {

namespace {

// Names the lowest stage whose offloaded state fits.
std::string stage_that_fits(Config config, const DatasetInfo& data, const Job& job, int rank,
                            int64_t available) {
  for (++config.dist.zero; config.dist.zero <= 3; ++config.dist.zero) {
    const Estimate need = memory_of_rank(config, data, job, rank);
    if (need.host_bytes + need.checkpoint_bytes <= available) {
      return str("dist.zero = ", config.dist.zero, " fits");
    }
  }
  return "no stage fits: use train.offload = none, or more nodes";
}

}  // namespace

AvailableMemory available_memory(Device device, int ranks_here) {
  AvailableMemory available;
  available.device = available.host =
      std::min(available_host_memory() / ranks_here, available_address_space());
  if constexpr (kHasCuda) {
    if (device == Device::kCuda) {
      available.device = cuda::device_bytes().free;
    }
  }
  return available;
}

void check_memory(const Config& config, const DatasetInfo& data, int rank,
                  const std::vector<int>& node_of_rank, Device device,
                  const AvailableMemory& available) {
  const int ranks = static_cast<int>(node_of_rank.size());
  const auto on = [&](int node) { return std::ranges::count(node_of_rank, node); };
  const bool even =
      std::ranges::all_of(node_of_rank, [&](int node) { return on(node) == on(node_of_rank[0]); });
  Job job{.ranks = ranks,
          .node_size = even ? static_cast<int>(on(node_of_rank[0])) : ranks,
          .hardware = {.device = device}};
  const Estimate need = memory_of_rank(config, data, job, rank);
  const bool offloads = device == Device::kCuda && config.train.offload != Offload::kNone;
  const int64_t on_host = need.host_bytes + need.checkpoint_bytes;
  if (offloads && on_host > available.host) {
    fail(ExitCode::kConfig,
         str("train.offload = ", name_of(config.train.offload), " needs ", format_bytes(on_host),
             " of the host's memory for this rank, and there are ", format_bytes(available.host),
             "; ", stage_that_fits(config, data, job, rank, available.host)));
  }
  const int64_t copy = device == Device::kCpu ? need.checkpoint_bytes : 0;
  if (need.peak_bytes + copy <= available.device) {
    return;
  }
  job.hardware.memory_bytes = available.device - copy;
  const int64_t micro_batch =
      usable_micro_batch(config, job, largest_micro_batch(config, data, job));
  const std::string advice =
      micro_batch > 0
          ? str("train.micro_batch = ", micro_batch, " fits")
          : "no micro-batch fits: use more ranks with dist.zero = 3, or a smaller model; `tandem "
            "estimate` compares settings";
  fail(ExitCode::kOutOfMemory,
       str("out of ", name_of(device), " memory: a step needs ", format_bytes(need.peak_bytes),
           copy > 0 ? str(", and the copy for checkpoints ", format_bytes(copy)) : "",
           "; there are ", format_bytes(available.device), " for this rank; ", advice));
}

}  // namespace tandem
