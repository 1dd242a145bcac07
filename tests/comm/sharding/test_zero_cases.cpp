// Difficult parameters in each ZeRO stage (property Z2 of tests/README.md): sizes that the ranks do
// not divide, and tiny, frozen, tied and unused parameters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/comm/sharding/zero_job.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

Ranks world() { return test_ranks(); }

constexpr Link kFrozen{.count = 50, .frozen = true}, kTied{.count = 41, .tied = true};

// No block trains more than 179 elements, and no two neighbours fit into 179 together. p0 is tied
// to the last block; one block has a single element, and one is frozen completely.
const Links kAwkward = {{kTied, {1}, {1, false}, {3}},
                        {kFrozen, {179, false}},
                        {{1}},
                        {{179}},
                        {{.count = 5, .decay = false, .frozen = true}},
                        {{177}}};
constexpr int64_t kFirstOfFrozen[] = {46, 46 + 50 + 179 + 1 + 179};  // among all elements
constexpr int64_t kCountOfFrozen[] = {50, 5};

ZeroPlan awkward_plan(bool exact, bool recompute) {
  return {.links = kAwkward,
          .store = {.bucket_bytes = 4 * 179},
          .exact = exact,
          .recompute = recompute};
}

TEST(ZeroCases, Z2AllStagesTrainAwkwardParametersAlike) {
  for (bool exact : {false, true}) {
    std::vector<double> reference;
    for (int stage : kStages) {
      for (bool recompute : {false, true}) {
        SCOPED_TRACE(str("exact ", exact, ", stage ", stage, ", recompute ", recompute));
        ZeroPlan plan = awkward_plan(exact, recompute);
        plan.store.zero = stage;
        ZeroJob job(world(), plan);
        job.train(10);
        reference = reference.empty() ? job.weights() : reference;
        EXPECT_EQ(job.weights(), reference);
      }
    }
  }
}

// The reference is 1 rank, where nothing is distributed.
TEST(ZeroCases, Z2ExactSumsOfAwkwardParametersAgreeWithOneRank) {
  ZeroPlan plan = awkward_plan(true, false);
  plan.micro_steps = 2 * world().size();
  OneRank self;
  ZeroJob alone(self, plan);
  alone.train(5);
  plan.micro_steps = 2;
  for (int stage : kStages) {
    for (int64_t bucket_bytes : {4, 4 * 179, 1 << 20}) {
      SCOPED_TRACE(str("stage ", stage, ", buckets of ", bucket_bytes));
      plan.store.zero = stage;
      plan.store.bucket_bytes = bucket_bytes;
      ZeroJob job(world(), plan);
      job.train(5);
      EXPECT_EQ(job.weights(), alone.weights());
      EXPECT_EQ(job.grad_norm(), alone.grad_norm());
    }
  }
}

TEST(ZeroCases, Z2FrozenParametersStayAndCountForNothing) {
  for (bool exact : {false, true}) {
    ZeroPlan plan = awkward_plan(exact, false);
    plan.micro_steps = world().size();
    OneRank self;
    ZeroJob alone(self, plan);
    double squares = 0;
    std::vector<double> sum;
    for (int64_t leaf = 0; leaf < alone.leaves() && !exact; ++leaf) {
      const std::vector<double> gradient = alone.leaf_gradient(leaf);
      sum.resize(gradient.size(), 0.0);
      std::ranges::transform(sum, gradient, sum.begin(), std::plus{});
    }
    for (double g : sum) {
      squares += g * g;  // 0 for frozen parameters, which are in no shard
    }
    plan.micro_steps = 1;
    for (int stage : kStages) {
      SCOPED_TRACE(str("exact ", exact, ", stage ", stage));
      plan.store.zero = stage;
      ZeroJob job(world(), plan);
      const std::vector<double> before = job.weights();
      job.step();
      if (!exact) {
        EXPECT_NEAR(job.grad_norm(), std::sqrt(squares), 1e-6 * std::sqrt(squares));
      }
      job.train(5);
      const std::vector<double> after = job.weights();
      int64_t same = 0;
      for (size_t i = 0; i < before.size(); ++i) {
        same += before[i] == after[i];
      }
      for (size_t f = 0; f < std::size(kFirstOfFrozen); ++f) {
        const auto first = kFirstOfFrozen[f], end = first + kCountOfFrozen[f];
        EXPECT_TRUE(
            std::equal(before.begin() + first, before.begin() + end, after.begin() + first));
      }
      EXPECT_EQ(same, 50 + 5) << "all others moved";
    }
  }
}

// When blocks are recomputed, a first block that is not used is not on the tape.
const Link kUnused{.count = 9, .unused = true};
const std::vector<Links> kWithUnused = {{{{20}}, {{30}, kUnused, {7}}, {{40}}},
                                        {{kUnused}, {{30}}, {{40}}},
                                        {{kUnused}, {{30}}},
                                        {{{20}}, {kUnused}, {{40}}},
                                        {{{20}}, {{40}}, {kUnused}}};
std::string name_of_unused(const Links& links) {
  int id = 0;
  for (const auto& block : links) {
    for (const Link& link : block) {
      if (link.unused) {
        return str("p", id);
      }
      ++id;
    }
  }
  return "";
}

template <class F>
void for_each_unused(F body) {
  for (size_t i = 0; i < kWithUnused.size(); ++i) {
    for (int stage : kStages) {
      for (bool exact : {false, true}) {
        for (bool recompute : {false, true}) {
          SCOPED_TRACE(
              str("case ", i, ", stage ", stage, ", exact ", exact, ", recompute ", recompute));
          body(ZeroPlan{.links = kWithUnused[i],
                        .store = {.bucket_bytes = 4 * 25, .zero = stage},
                        .exact = exact,
                        .micro_steps = 2,
                        .recompute = recompute});
        }
      }
    }
  }
}

TEST(ZeroCases, Z2AnUnusedParameterIsNamedOnEveryRank) {
  for_each_unused([](const ZeroPlan& plan) {
    ZeroJob job(world(), plan);
    try {
      job.step();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      const std::string text = str("parameter ", name_of_unused(plan.links),
                                   " got no gradient on rank ", world().rank());
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    world().collectives.stream().synchronize();  // every rank has started the same collectives
  });
}

TEST(ZeroCases, Z2AnUnusedParameterCountsAsZeroOnRequest) {
  for_each_unused([](ZeroPlan plan) {
    plan.store.unused_is_error = false;
    plan.clip_norm = 0;
    ZeroJob job(world(), plan);
    job.gradients();
    const std::vector<double> gradients = job.summed_gradients();
    EXPECT_EQ(std::ranges::count(gradients, 0.0), 9);
    // Only weight decay changes it; the other parameters go on training.
    const std::vector<double> before = job.weights();
    job.train(3);
    const std::vector<double> after = job.weights();
    const double keep = static_cast<float>(1 - 0.02 * 0.1);
    for (size_t i = 0; i < before.size(); ++i) {
      if (gradients[i] == 0) {
        const float once = static_cast<float>(keep) * static_cast<float>(before[i]);
        const float twice = static_cast<float>(keep) * once;
        EXPECT_EQ(after[i], static_cast<float>(keep) * twice);
      } else {
        EXPECT_NE(after[i], before[i]);
      }
    }
    // Values that a pass fetched ahead and did not use must not be used by the next step.
    std::vector<double> read;
    job.watch = [&](BlockId block, Pass, bool acquired) {
      if (acquired) {
        job.read(block, read);
      }
    };
    job.evaluate();
    EXPECT_EQ(read, after);
  });
}

}  // namespace
}  // namespace tandem::testing
