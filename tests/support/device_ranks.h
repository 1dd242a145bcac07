// The ranks of a test program, as their tensors need them: over MPI, or over NCCL for those on a
// GPU.
#pragma once

#include <memory>

#include "comm/transport/nccl_collectives.h"
#include "src/device/cuda.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {

class DeviceRanks {
 public:
  // Collective for the first call with each device.
  Collectives& of(Device device) {
    if constexpr (kHasCuda) {
      if (device == Device::kCuda) {
        if (!nccl_) {
          cuda::use_device(test_world().local_rank() % cuda::device_count());
          nccl_ =
              std::make_unique<NcclCollectives>(test_world().control(), test_world().timeout_s());
        }
        return *nccl_;
      }
    }
    return test_world().collectives();
  }

 private:
  std::unique_ptr<Collectives> nccl_;
};

}  // namespace tandem::testing
