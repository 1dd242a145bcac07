// The order of events does not matter: bucket sizes and overlap (property E4 of tests/README.md),
// delays (E5), nodes (E6).
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/comm/sharding/zero_job.h"
#include "tests/comm/tapped_collectives.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

Ranks world() { return test_ranks(); }

const Links kOdd = {{{103}, {11, false}}, {{211}, {7, false}, {5}}, {{2, false}}, {{209}, {13}}};
constexpr std::array<int64_t, 3> kBucketBytes = {4, 1 << 10, 1 << 20};  // one parameter ... all

std::vector<double> trained(const ZeroPlan& plan, int steps) {
  ZeroJob job(world(), plan);
  job.train(steps);
  return job.weights();
}

TEST(ZeroOrder, E4NeitherBucketsNorOverlapChangeExactSums) {
  std::vector<double> reference;
  for (int stage : kStages) {
    for (int64_t bucket_bytes : kBucketBytes) {
      for (bool overlap : {true, false}) {
        SCOPED_TRACE(str("stage ", stage, ", buckets of ", bucket_bytes, ", overlap ", overlap));
        const std::vector<double> weights =
            trained({.links = kOdd,
                     .store = {.bucket_bytes = bucket_bytes, .overlap = overlap, .zero = stage},
                     .exact = true,
                     .micro_steps = 2},
                    4);
        reference = reference.empty() ? weights : reference;
        EXPECT_EQ(weights, reference);
      }
    }
  }
}

// Sums of floats depend on the buckets, except with 2 ranks and 1 micro-step.
TEST(ZeroOrder, E4OverlapChangesNoSum) {
  std::vector<double> reference;
  for (int stage : kStages) {
    for (int64_t bucket_bytes : kBucketBytes) {
      SCOPED_TRACE(str("stage ", stage, ", buckets of ", bucket_bytes));
      ZeroPlan plan{.links = kOdd,
                    .store = {.bucket_bytes = bucket_bytes, .overlap = true, .zero = stage}};
      const std::vector<double> weights = trained(plan, 4);
      plan.store.overlap = false;
      EXPECT_EQ(trained(plan, 4), weights);
      reference = reference.empty() || world().size() > 2 ? weights : reference;
      EXPECT_EQ(weights, reference);
    }
  }
}

// Each rank sleeps up to 0.3 ms before each of its collectives, on the thread that runs them, and
// before it reports that a gradient is final.
TEST(ZeroOrder, E5DelaysChangeNothing) {
  std::mt19937 random(static_cast<uint32_t>(world().rank()));
  const auto pause = [](uint64_t duration) {
    std::this_thread::sleep_for(std::chrono::microseconds(duration % 300));
  };
  TappedCollectives late(world().collectives, [&](Traffic, const Tensor&) {
    world().collectives.stream().submit([pause, duration = random()] { pause(duration); });
  });
  for (int stage : kStages) {
    for (bool exact : {false, true}) {
      const ZeroPlan plan{.links = kOdd,
                          .store = {.bucket_bytes = 300, .zero = stage},
                          .exact = exact,
                          .micro_steps = 2};
      const std::vector<double> reference = trained(plan, 2);
      for (int run = 0; run < 6; ++run) {
        SCOPED_TRACE(str("stage ", stage, ", exact ", exact, ", run ", run));
        ZeroJob job({world().control, late}, plan);
        job.before_final = [&] { pause(random()); };
        job.train(2);
        EXPECT_EQ(job.weights(), reference);
      }
    }
  }
}

// Two nodes of two ranks. When state is sharded inside nodes, each shard has two replicas, and
// weights() takes half of it from each.
TEST(ZeroOrder, E6NodesChangeNoExactSum) {
  if (world().size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  ZeroPlan plan{.links = kOdd, .store = {.bucket_bytes = 300}, .exact = true, .micro_steps = 2};
  const std::vector<double> flat = trained(plan, 10);
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 1, 1}, {0, 1, 0, 1}}) {
    for (Sharing sharing : {Sharing::kWorld, Sharing::kNode}) {
      for (int stage : kStages) {
        SCOPED_TRACE(str("stage ", stage, sharing == Sharing::kNode ? ", parts for a node" : ""));
        plan.store.zero = stage;
        plan.nodes = nodes;
        plan.sharing = sharing;
        EXPECT_EQ(trained(plan, 10), flat);
      }
    }
  }
}

// Replicas do not drift apart when sums are rounded.
TEST(ZeroOrder, E6ReplicasOfNodesStayEqual) {
  if (world().size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  for (int stage : kStages) {
    for (DType wire : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(str("stage ", stage, ", wire ", name_of(wire)));
      ZeroJob job(world(), {.links = kOdd,
                            .store = {.bucket_bytes = 300, .zero = stage, .wire_dtype = wire},
                            .micro_steps = 2,
                            .nodes = {0, 0, 1, 1},
                            .sharing = Sharing::kNode});
      job.train(10);
      std::string masters;
      for (const Shard& shard : job.store().shards.all()) {
        masters.append(reinterpret_cast<const char*>(shard.value.raw()),
                       static_cast<size_t>(shard.value.bytes()));
      }
      const std::vector<std::string> all = world().control.all_gather(masters);
      EXPECT_TRUE(all[0] == all[2] && all[1] == all[3]);
      EXPECT_EQ(all[0] == all[1], stage == 0);
    }
  }
}

}  // namespace
}  // namespace tandem::testing
