// The bytes that a step sends equal a formula: W1 and W2 of tests/README.md for a flat world, W3
// for nodes; A3 is the number of collectives. E' is the padded number of elements, N the number of
// ranks. In a reduce-scatter or an all-gather of n elements, a rank sends (N - 1) / N n.
#include <gtest/gtest.h>

#include "tests/comm/sharding/zero_job.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

Ranks world() { return test_ranks(); }

const Links kBlocks = {{{1000}, {40, false}}, {{3000}}, {{500}, {20, false}, {7}}, {{2000}}};
const Links kTied = {{{.count = 700, .tied = true}, {40, false}}, {{3000}}, {{2000}}};

struct Elements {
  int64_t all = 0, shared = 0, last = 0;  // padded; last: of the last block that is sharded
  int64_t sharded() const { return all - shared; }
};
Elements elements_of(const ParamStore& store) {
  Elements elements;
  for (const Bucket& bucket : store.layout.flat().buckets()) {
    elements.all += bucket.range.count();
    elements.shared += bucket.shared ? bucket.range.count() : 0;
    elements.last = bucket.shared ? elements.last : bucket.range.count();
  }
  return elements;
}

// The traffic of the second step, because exact sums run the first one twice.
WireCount traffic_of(ZeroJob& job) {
  job.train(1);
  const WireCount before = job.wire();
  job.train(1);
  return job.wire() - before;
}

int64_t fraction(int64_t bytes) { return bytes / world().size() * (world().size() - 1); }

TEST(ZeroTraffic, W1AMillionAndThreeParameters) {
  constexpr std::array<int64_t, 5> kExpected = {0, 0, 4000768, 5335040, 6002688};
  for (int stage : {0, 1, 2}) {
    ZeroJob job(world(), {.links = {{{1000003}}}, .store = {.zero = stage}});
    EXPECT_EQ(traffic_of(job).payload().total(), kExpected[world().size()]) << "stage " << stage;
  }
}

struct Format {
  DType values, wire;
  bool exact = false, gather_int8 = false;
};
constexpr std::array<Format, 7> kFormats = {{{DType::kF32, DType::kF32},
                                             {DType::kBf16, DType::kF32},
                                             {DType::kF32, DType::kBf16},
                                             {DType::kBf16, DType::kBf16},
                                             {DType::kBf16, DType::kF32, true},
                                             {DType::kF32, DType::kI8, false, true},
                                             {DType::kBf16, DType::kI8, false, true}}};

// Bytes of `elements`, a multiple of 128, on the wire.
int64_t bytes_of(DType dtype, int64_t elements) {
  return dtype == DType::kI8 ? elements / 128 * 132 : elements * size_of(dtype);
}

// Elements that are reduced and gathered in a step of k micro-steps, by ZeRO stage. In stage 3, as
// in stage 1, shared parameters are reduced once and gathered once. Blocks are gathered for each
// forward and each backward pass, except the last one, which is gathered once for both.
struct Amounts {
  int64_t reduced, gathered;
};
Amounts amounts(const ParamStore& store, int stage, int64_t k) {
  const Elements e = elements_of(store);
  switch (stage) {
    case 0:
      return {e.all, 0};
    case 1:
      return {e.all, e.all};
    case 2:
      return {e.shared + k * e.sharded(), e.all};
    default:
      return {e.shared + k * e.sharded(), e.shared + k * (2 * e.sharded() - e.last)};
  }
}

TEST(ZeroTraffic, W2AWholeStep) {
  for (int stage : kStages) {
    for (int micro_steps : {1, 3}) {
      for (const Links& links : {kBlocks, kTied}) {
        for (const Format& format : kFormats) {
          SCOPED_TRACE(str("stage ", stage, ", ", micro_steps, " micro-steps, values ",
                           name_of(format.values), ", wire ", name_of(format.wire), ", exact ",
                           format.exact, ", gathered in int8 ", format.gather_int8));
          ZeroJob job(world(), {.links = links,
                                .store = {.bucket_bytes = 4 * 2000,
                                          .zero = stage,
                                          .dtype = format.values,
                                          .wire_dtype = format.wire,
                                          .gather_int8 = format.gather_int8},
                                .exact = format.exact,
                                .micro_steps = micro_steps});
          const WireCount sent = traffic_of(job);
          const Amounts amount = amounts(job.store(), stage, micro_steps);
          const DType sum = format.exact ? DType::kI64 : format.wire;
          const DType value = format.gather_int8 ? DType::kI8 : format.values;
          const int64_t reduction = fraction(bytes_of(sum, amount.reduced));
          const int64_t gather = fraction(bytes_of(value, amount.gathered));
          const bool rounds = format.wire != DType::kF32;  // scattered by all-to-all
          const int64_t scattered =
              sent.of(rounds ? Traffic::kAllToAll : Traffic::kReduceScatter).total();
          if (stage > 0) {
            EXPECT_EQ(scattered, reduction);
            EXPECT_EQ(sent.of(Traffic::kAllGather).total(), gather);
          }
          EXPECT_EQ(sent.payload().total(), (stage == 0 ? 2 : 1) * reduction + gather);
          EXPECT_EQ(sent.payload().between, 0);
        }
      }
    }
  }
}

TEST(ZeroTraffic, WholeValuesAreNotGatheredAgain) {
  for (int stage : {1, 2}) {
    ZeroJob job(world(), {.links = kBlocks, .store = {.zero = stage}});
    const WireCount before = job.wire();
    job.store().values.gather();
    EXPECT_EQ(job.wire(), before) << "stage " << stage;
    job.store().values.outdate();
    job.store().values.gather();
    EXPECT_EQ(job.wire() == before, world().size() == 1) << "stage " << stage;
  }
}

TEST(ZeroTraffic, A3CollectivesDoNotCountMicroStepsInStages0And1) {
  for (bool exact : {false, true}) {
    for (int stage : kStages) {
      SCOPED_TRACE(str("stage ", stage, ", exact ", exact));
      std::vector<int64_t> counts;
      int64_t buckets = 0;
      for (int micro_steps : {1, 2, 5}) {
        ZeroJob job(world(), {.links = kBlocks,
                              .store = {.bucket_bytes = 4 * 2000, .zero = stage},
                              .exact = exact,
                              .micro_steps = micro_steps});
        buckets = std::ssize(job.store().layout.flat().buckets());
        ASSERT_GT(buckets, 1);
        counts.push_back(traffic_of(job).collectives);
      }
      if (world().size() == 1) {
        EXPECT_EQ(counts, (std::vector<int64_t>{0, 0, 0}));
        continue;
      }
      const auto expected = [&](int64_t k) {
        const std::array<int64_t, 4> by_stage = {buckets, 2 * buckets, (k + 1) * buckets,
                                                 k * (3 * buckets - 1)};
        return by_stage[stage];
      };
      EXPECT_EQ(counts, (std::vector<int64_t>{expected(1), expected(2), expected(5)}));
    }
  }
}

// n = 2 nodes of g = 2 ranks. Between nodes a rank sends (n - 1) / n of E' / g for each
// reduce-scatter and each all-gather over all ranks. When state is sharded inside nodes, gathers
// stay inside them, and sums send (n - 1) / n of E' / g twice.
TEST(ZeroTraffic, W3BetweenNodes) {
  if (world().size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  for (Sharing sharing : {Sharing::kWorld, Sharing::kNode}) {
    for (int stage : kStages) {
      for (int micro_steps : {1, 3}) {
        SCOPED_TRACE(str("stage ", stage, sharing == Sharing::kNode ? ", parts for a node" : "",
                         ", ", micro_steps, " micro-steps"));
        const bool rounds = micro_steps == 1;  // between nodes only
        ZeroJob job(world(), {.links = kTied,
                              .store = {.bucket_bytes = 4 * 2000,
                                        .zero = stage,
                                        .wire_dtype = rounds ? DType::kI8 : DType::kF32,
                                        .gather_int8 = rounds},
                              .micro_steps = micro_steps,
                              .nodes = {0, 0, 1, 1},
                              .sharing = sharing});
        const WireCount sent = traffic_of(job);
        const Amounts amount = amounts(job.store(), stage, micro_steps);
        const int64_t reduced = 4 * amount.reduced, gathered = 4 * amount.gathered;
        const bool world_wide = sharing == Sharing::kWorld;
        const int64_t sums = stage == 0 ? 2 : 1;  // stage 0: reduce-scatter and all-gather
        const int64_t between = world_wide ? (sums * reduced + gathered) / 4 : 2 * reduced / 4;
        EXPECT_EQ(sent.payload().between, rounds ? between / 512 * 132 : between);
        EXPECT_EQ(sent.payload().inside, (sums * reduced + gathered) / 2);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::testing
