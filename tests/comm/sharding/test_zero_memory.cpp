// The memory of a rank equals a formula: between steps (property Z3 of tests/README.md), and while
// the values and gradients of blocks come and go (Z4).
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/comm/sharding/zero_job.h"
#include "tests/comm/tapped_collectives.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

Ranks world() { return test_ranks(); }

// Blocks of `sizes` times N * 128 elements on N ranks, sizes which the memory pool does not round
// up. Each block has a few elements less than that, which padding fills.
Links blocks_of(std::initializer_list<int64_t> sizes) {
  Links links;
  for (int64_t size : sizes) {
    links.push_back({{.count = size * 128 * world().size() - 3}});
  }
  return links;
}

constexpr int64_t kSum = 8 + 16 + 12 + 12;
Links blocks() { return blocks_of({8, 16, 12, 12}); }

int64_t bytes_in(const ZeroJob& job, MemoryClass memory_class) {
  return job.memory().use(memory_class).bytes;
}

struct Formula {
  int64_t parameters, masters, gradients, optimizer;
};

// E' elements in N shards; a value takes w bytes and a gradient g bytes.
Formula formula(int stage, DType values, bool exact) {
  const int64_t parts = world().size(), all = kSum * 128 * world().size();
  const int64_t g = exact ? 4 + 8 : 4, w = size_of(values);
  const int64_t state = stage >= 1 ? all / parts : all;
  return {.parameters = w * (stage >= 3 ? all / parts : all),
          .masters = values == DType::kF32 ? 0 : 4 * state,
          .gradients = g * (stage >= 2 ? all / parts : all),
          .optimizer = 8 * state + 64};  // Adam's moments, and the figures of the step
}

TEST(ZeroMemory, Z3WhatRestsIsTheFormula) {
  for (int stage : kStages) {
    for (DType values : {DType::kF32, DType::kBf16, DType::kFp16}) {
      for (bool exact : {false, true}) {
        SCOPED_TRACE(str("stage ", stage, ", ", name_of(values), ", exact ", exact));
        ZeroJob job(world(), {.links = blocks(),
                              .store = {.bucket_bytes = 4, .zero = stage, .dtype = values},
                              .exact = exact});
        const Formula expected = formula(stage, values, exact);
        // Before the first step and after it.
        for (int step = 0; step < 2; ++step) {
          EXPECT_EQ(bytes_in(job, MemoryClass::kParameters), expected.parameters);
          EXPECT_EQ(bytes_in(job, MemoryClass::kMasters), expected.masters);
          EXPECT_EQ(bytes_in(job, MemoryClass::kGradients), expected.gradients);
          EXPECT_EQ(bytes_in(job, MemoryClass::kOptimizer), expected.optimizer);
          // Exact sums: the largest element of each of four parameters, and the digits of a norm.
          EXPECT_LE(bytes_in(job, MemoryClass::kStaging), exact ? 512 : 0);
          for (MemoryClass other :
               {MemoryClass::kActivations, MemoryClass::kWorkspace, MemoryClass::kData}) {
            EXPECT_EQ(job.memory().use(other).peak_bytes, 0) << name_of(other);
          }
          job.step();
        }
      }
    }
  }
}

// The middle one of three blocks is frozen, and half of the last: they take memory for values only.
TEST(ZeroMemory, Z3FrozenParametersAreValuesAlone) {
  const int64_t parts = world().size(), unit = 128 * parts;
  constexpr int64_t kTrained = 8 + 4, kFrozenUnits = 16 + 4;
  for (int stage : kStages) {
    for (DType values : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(str("stage ", stage, ", ", name_of(values)));
      ZeroJob job(world(),
                  {.links = {{{.count = 8 * unit - 3}},
                             {{.count = 16 * unit - 3, .frozen = true}},
                             {{.count = 4 * unit - 3, .frozen = true}, {.count = 4 * unit - 3}}},
                   .store = {.bucket_bytes = 4, .zero = stage, .dtype = values}});
      const std::vector<double> before = job.weights();
      const int64_t state = 4 * kTrained * unit / (stage >= 1 ? parts : 1);
      for (int step = 0; step < 2; ++step) {
        EXPECT_EQ(bytes_in(job, MemoryClass::kParameters),
                  size_of(values) * (kTrained + kFrozenUnits) * unit / (stage >= 3 ? parts : 1));
        EXPECT_EQ(bytes_in(job, MemoryClass::kMasters), values == DType::kF32 ? 0 : state);
        EXPECT_EQ(bytes_in(job, MemoryClass::kGradients),
                  4 * kTrained * unit / (stage >= 2 ? parts : 1));
        EXPECT_EQ(bytes_in(job, MemoryClass::kOptimizer), 2 * state + 64);
        job.step();
      }
      const std::vector<double> after = job.weights();
      const auto first = static_cast<size_t>(8 * unit - 3),
                 frozen = static_cast<size_t>((16 + 4) * unit - 6);
      for (size_t i = 0; i < before.size(); ++i) {
        const bool is_frozen = i >= first && i < first + frozen;
        ASSERT_TRUE(!is_frozen || before[i] == after[i]) << i;
      }
      EXPECT_NE(before, after);
    }
  }
}

// The peak of staging memory. Values: two blocks in stage 3, or one without overlap. Gradients: two
// blocks in stages 2 and 3, or one without overlap; each with its message if that is rounded or
// exact.
TEST(ZeroMemory, Z4AtMostTwoBlocksAreWhole) {
  const int64_t block = 12 * 128 * world().size();  // all blocks are alike: the bound is reached
  for (bool overlap : {true, false}) {
    for (int stage : kStages) {
      for (int micro_steps : {1, 3}) {
        for (bool recompute : {true, false}) {
          SCOPED_TRACE(str("stage ", stage, ", overlap ", overlap, ", ", micro_steps,
                           " micro-steps, recompute ", recompute));
          ZeroJob job(world(), {.links = blocks_of({12, 12, 12, 12, 12}),
                                .store = {.bucket_bytes = 4, .overlap = overlap, .zero = stage},
                                .micro_steps = micro_steps,
                                .recompute = recompute});
          int64_t forward = 0;  // the peak during forward passes
          job.watch = [&](BlockId, Pass pass, bool) {
            if (pass == Pass::kForward) {
              forward = std::max(forward, bytes_in(job, MemoryClass::kStaging));
            }
          };
          job.train(2);
          const bool shards = world().size() > 1;
          const int64_t at_once = overlap ? 2 : 1;
          const int64_t values = shards && stage >= 3 ? at_once : 0;
          const int64_t gradients = shards && stage >= 2 ? at_once : 0;
          EXPECT_EQ(job.memory().use(MemoryClass::kStaging).peak_bytes,
                    4 * block * (values + gradients));
          if (micro_steps ==
              1) {  // otherwise gradients of the previous micro-step are still in flight
            EXPECT_EQ(forward, 4 * block * values);
          }
          EXPECT_EQ(bytes_in(job, MemoryClass::kStaging), 0);
        }
      }
    }
  }
}

// Blocks of different size: never more than the two largest, whatever the message.
TEST(ZeroMemory, Z4NeverMoreThanTheTwoLargestBlocks) {
  const int64_t unit = 128 * world().size(), two_largest = (24 + 20) * unit;
  struct Case {
    DType values, wire;
    bool exact;
    int64_t message;  // bytes an element, in addition to the gradient
  };
  for (const Case& c :
       {Case{DType::kF32, DType::kF32, false, 0}, Case{DType::kBf16, DType::kBf16, false, 2},
        Case{DType::kFp16, DType::kF32, true, 8}}) {
    for (bool recompute : {true, false}) {
      ZeroJob job(world(), {.links = blocks_of({8, 24, 10, 20, 12}),
                            .store = {.zero = 3, .dtype = c.values, .wire_dtype = c.wire},
                            .exact = c.exact,
                            .micro_steps = 2,
                            .recompute = recompute});
      const int64_t rest = bytes_in(job, MemoryClass::kStaging);
      const auto check = [&] {
        EXPECT_LE(job.memory().use(MemoryClass::kStaging).peak_bytes - rest,
                  two_largest * (size_of(c.values) + 4 + c.message));
      };
      job.train(2);
      check();
      job.evaluate();
      check();
      EXPECT_EQ(bytes_in(job, MemoryClass::kStaging), rest);
    }
  }
}

// Gradients that are whole on each rank need memory for what is sent only if that is rounded.
TEST(ZeroMemory, Z4AtMostTwoRoundedMessagesAreThere) {
  const int64_t block = 12 * 128 * world().size();
  for (int stage : {0, 1}) {
    for (DType wire : {DType::kF32, DType::kBf16}) {
      ZeroJob job(world(), {.links = blocks_of({12, 12, 12, 12, 12}),
                            .store = {.bucket_bytes = 4, .zero = stage, .wire_dtype = wire}});
      job.train(2);
      const bool is_rounded = wire == DType::kBf16 && world().size() > 1;
      EXPECT_EQ(job.memory().use(MemoryClass::kStaging).peak_bytes,
                is_rounded ? 2 * block * size_of(wire) : 0)
          << "stage " << stage << ", " << name_of(wire);
    }
  }
}

// Records the order in which blocks are gathered; a block is known by its size.
struct Gathers {
  std::vector<int64_t> sizes;
  TappedCollectives tapped{world().collectives, [this](Traffic traffic, const Tensor& whole) {
                             if (traffic == Traffic::kAllGather) {
                               sizes.push_back(whole.elements() / (128 * world().size()));
                             }
                           }};
  std::vector<int64_t> take() { return std::exchange(sizes, {}); }
};

TEST(ZeroMemory, Z4EachBlockIsGatheredOnceInEachPass) {
  if (world().size() == 1) {
    GTEST_SKIP() << "for several ranks";
  }
  for (bool overlap : {true, false}) {
    for (bool recompute : {true, false}) {
      SCOPED_TRACE(str("overlap ", overlap, ", recompute ", recompute));
      Gathers gathers;
      ZeroJob job({world().control, gathers.tapped}, {.links = blocks_of({1, 2, 3, 4}),
                                                      .store = {.overlap = overlap, .zero = 3},
                                                      .micro_steps = 2,
                                                      .recompute = recompute});
      EXPECT_EQ(gathers.take(), std::vector<int64_t>{});
      for (int step = 0; step < 2; ++step) {
        job.step();
        EXPECT_EQ(gathers.take(), (std::vector<int64_t>{1, 2, 3, 4, 3, 2, 1,  //
                                                        1, 2, 3, 4, 3, 2, 1}));
        job.evaluate();
        EXPECT_EQ(gathers.take(), (std::vector<int64_t>{1, 2, 3, 4}));
        job.evaluate();
        EXPECT_EQ(gathers.take(), (std::vector<int64_t>{1, 2, 3, 4}));
      }
    }
  }
}

// Parameters that several blocks use are gathered only after the optimizer, as in stages 1 and 2.
TEST(ZeroMemory, Z4SharedParametersAreGatheredOnceAStep) {
  if (world().size() == 1) {
    GTEST_SKIP() << "for several ranks";
  }
  Links links = blocks_of({1, 2, 3});
  links[0].push_back({.count = 5 * 128 * world().size(), .tied = true});
  Gathers gathers;
  ZeroJob job({world().control, gathers.tapped}, {.links = links, .store = {.zero = 3}});
  EXPECT_EQ(gathers.take(), std::vector<int64_t>{5});
  job.step();
  EXPECT_EQ(gathers.take(), (std::vector<int64_t>{1, 2, 3, 2, 1, 5}));
  job.evaluate();
  EXPECT_EQ(gathers.take(), (std::vector<int64_t>{1, 2, 3}));
}

}  // namespace
}  // namespace tandem::testing
