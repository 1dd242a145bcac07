// Whole training steps with Muon, on every device, over 1 to 4 ranks: neither ranks nor stages
// change a bit of exact sums, and messages are as long as their formula says.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <tuple>

#include "comm/sharding/matrices/whole_matrices.h"
#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr int kSteps = 3;

int stages() { return test_world().size() == 1 ? 1 : 4; }  // 1 rank shards nothing

// The matrices are [16, 16], [24, 16] and [16, 24]; buckets and shards end inside them. "mlp" has
// fewer matrices than ranks.
TEST(MuonTraining, RanksStagesAndBucketsChangeNoBit) {
  for_each_device([](Device device) {
    for (Plan plan : {Plan{.model = "gpt"},
                      {.model = "llama", .dtype = DType::kBf16},
                      {.model = "mlp"},
                      {.model = "gpt", .dtype = DType::kFp16, .poisoned_step = 1},
                      {.model = "llama", .frozen = "blocks.0"}}) {
      SCOPED_TRACE(str(plan.model, " ", name_of(plan.dtype), " ", plan.frozen));
      plan.device = device;
      plan.exact = true;
      plan.micro_batch = 1;
      plan.optimizer = "muon";
      plan.alone = true;
      const Outcome expected = train(plan, kSteps);
      EXPECT_EQ(expected.skipped, plan.poisoned_step < 0 ? 0 : 1);
      plan.alone = false;
      for (const auto& [zero, bucket_bytes] :
           {std::pair(0, 2000), std::pair(1, 2000), std::pair(2, 1 << 20), std::pair(3, 200)}) {
        if (zero < stages() && (zero == 1 || plan.dtype == DType::kF32)) {
          plan.zero = zero;
          plan.bucket_bytes = bucket_bytes;
          EXPECT_EQ(train(plan, kSteps), expected) << "stage " << zero;
        }
      }
    }
  });
}

// A run of the emulated GPU takes minutes, so the suite leaves it to the nightly checks.
TEST(MuonTraining, FiftyStepsHaveTheSameBitsInAllStages) {
  for_each_device([](Device device) {
    if (device == Device::kCuda && std::getenv("TANDEM_MUON_ALL") == nullptr) {
      return;
    }
    for (const int micro_steps : {1, 3}) {
      Plan plan{.device = device,
                .exact = true,
                .global_batch = micro_steps * test_world().size(),
                .micro_batch = 1,
                .optimizer = "muon",
                .alone = true};
      const Outcome expected = train(plan, 50);
      plan.alone = false;
      for (plan.zero = 0; plan.zero < 4; ++plan.zero) {
        EXPECT_EQ(train(plan, 50), expected) << "stage " << plan.zero << ", k = " << micro_steps;
      }
    }
  });
}

TEST(MuonTraining, NodesChangeNoBit) {
  if (test_world().size() != 4) {
    GTEST_SKIP() << "four ranks make two nodes of two";
  }
  for_each_device([](Device device) {
    Plan plan{
        .device = device, .exact = true, .micro_batch = 1, .optimizer = "muon", .alone = true};
    const Outcome expected = train(plan, kSteps);
    plan.alone = false;
    plan.zero = 1;
    plan.node_size = 2;
    for (const Sharing sharing : {Sharing::kWorld, Sharing::kNode}) {
      plan.sharing = sharing;
      EXPECT_EQ(train(plan, kSteps), expected);
    }
  });
}

// A rank sends what its shard has of others' matrices, and later what others' shards have of its
// own; elements of 4 bytes, or of 2 in bf16.
TEST(MuonTraining, SendsWhatItsFormulaSays) {
  const int ranks = test_world().size();
  for_each_device([&](Device device) {
    for (const auto& [dtype, zero] :
         {std::pair{DType::kF32, 0}, {DType::kF32, 1}, {DType::kBf16, 2}, {DType::kF32, 3}}) {
      SCOPED_TRACE(str(name_of(dtype), ", stage ", zero));
      Job job({.device = device, .dtype = dtype, .zero = zero, .optimizer = "muon"});
      ParamStore& store = job.training().store();
      const WholeMatrices matrices(store.layout, store.gradients, job.training().timeline(),
                                   job.memory());
      int64_t elements = 0;
      for (const WholeMatrices::Matrix& matrix : matrices.matrices()) {
        const Bucket& bucket = store.layout.bucket(matrix.bucket);
        for (int part = 0; part < ranks && zero > 0; ++part) {
          const int64_t here =
              intersection(matrix.range, store.layout.flat().part(bucket, part)).count();
          const bool mine = matrix.owner == test_world().rank();
          elements += mine != (part == test_world().rank()) ? here : 0;
        }
      }
      Group& group = store.layout.stage();
      const auto sent = [&] { return group.wire().of(Traffic::kAllToAll).total(); };
      const int64_t before = sent();
      job.step(0);
      group.stream().synchronize();
      EXPECT_EQ(sent() - before, elements * size_of(dtype));
    }
  });
}

// In each bucket matrices come first, then other parameters with weight decay, then the rest.
TEST(MuonTraining, ParametersLieInThreeRuns) {
  for (const bool muon : {false, true}) {
    Job job({.bucket_bytes = 1 << 20, .optimizer = muon ? "muon" : "adamw"});
    const ModelLayout& layout = job.training().store().layout;
    std::array<int, 3> found{};
    for (const Segment& segment : layout.flat().segments()) {
      const Bucket& bucket = layout.bucket(segment.bucket);
      const int run =
          (segment.offset >= bucket.first_other) + (segment.offset >= bucket.first_plain);
      const Parameter& parameter = *layout.parameters()[segment.parameter];
      EXPECT_EQ(run, muon && parameter.matrix ? 0 : parameter.decay ? 1 : 2) << segment.name;
      ++found[run];
    }
    EXPECT_EQ(found[0], muon ? 4 * 2 : 0);  // queries, keys and values are one parameter
    EXPECT_GT(found[1], 0);
    EXPECT_GT(found[2], 0);
  }
}

TEST(MuonTraining, WorkIsDividedAmongTheRanks) {
  Job job({.zero = 1, .layers = 8, .optimizer = "muon"});
  ParamStore& store = job.training().store();
  const WholeMatrices matrices(store.layout, store.gradients, job.training().timeline(),
                               job.memory());
  EXPECT_EQ(matrices.matrices().size(), 6U * 8);  // q, k, v, the output, and two of the MLP
  std::vector<int64_t> elements(static_cast<size_t>(test_world().size()));
  for (const WholeMatrices::Matrix& matrix : matrices.matrices()) {
    elements[matrix.owner] += matrix.rows * matrix.columns;
  }
  const auto [least, most] = std::ranges::minmax(elements);
  EXPECT_LE(most - least, 16 * 24);  // the largest matrix
}

}  // namespace
}  // namespace tandem::testing
