// The groups that tests of Group try: on every transport, with every placement on nodes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "comm/sharding/group.h"
#include "comm/transport/nccl_collectives.h"
#include "src/device/cuda.h"
#include "tests/comm/collectives_check.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {

using Nodes = std::vector<int>;  // by rank

class GroupTest : public ::testing::Test {
 protected:
  const Ranks world = test_ranks();
  const int rank = world.rank();
  const int size = world.size();

  std::vector<int> everybody() const {
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  // All on one node, each on its own node, and what else this number of ranks allows.
  std::vector<Nodes> placements() const {
    std::vector<Nodes> all = {Nodes(static_cast<size_t>(size), 0), everybody()};
    if (size == 4) {
      all.insert(all.end(), {{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 0}});
    }
    return all;
  }
  static constexpr auto kSharings = {Sharing::kWorld, Sharing::kNode};

  // body(ranks, device of the tensors)
  template <class F>
  void for_each_way(F body) {
    const Ranks mpi = test_ranks();
    {
      SCOPED_TRACE("MPI, host memory");
      body(mpi, Device::kCpu);
    }
    if constexpr (kHasCuda) {
      if (std::ranges::count(available_devices(), Device::kCuda) > 0 &&
          test_world().local_size() <= cuda::device_count()) {
        cuda::use_device(test_world().local_rank());
        {
          SCOPED_TRACE("MPI, GPU memory");
          body(mpi, Device::kCuda);
        }
        SCOPED_TRACE("NCCL");
        NcclCollectives nccl(mpi.control, test_world().timeout_s());
        body(Ranks{mpi.control, nccl}, Device::kCuda);
      }
    }
  }
  // body(group, nodes, device)
  template <class F>
  void for_each_group(F body) {
    for_each_way([&](const Ranks& way, Device device) {
      for (const Nodes& nodes : placements()) {
        for (const Sharing sharing : kSharings) {
          SCOPED_TRACE(str("nodes ", ::testing::PrintToString(nodes),
                           sharing == Sharing::kWorld ? ", shared by all" : ", shared by a node"));
          const Group ranks(way.control, way.collectives, test_memory(device), nodes, sharing);
          body(ranks, nodes, device);
        }
      }
    });
  }
};

// Element i is element(i).
template <class T>
Tensor made(int64_t n, Device device, const std::function<T(int64_t)>& element) {
  const Tensor host = Tensor::zeros(test_memory(), {n}, dtype_of<T>, MemoryClass::kGradients);
  for (int64_t i = 0; i < n; ++i) {
    host.data<T>()[i] = element(i);
  }
  return to_device(host, device);
}

}  // namespace tandem::testing
