#include <gtest/gtest.h>

#include "comm/transport/local_control.h"
#include "src/report/slowest_rank.h"

namespace tandem::testing {
namespace {

RankTime time_of(double compute, double communication, double data = 0, double optimizer = 0,
                 double saving = 0) {
  return {.seconds = compute + communication + data + optimizer,
          .parts = {compute, communication, data, optimizer, saving}};
}

TEST(SlowestRank, WaitsLeastForOthers) {
  const SlowestRank slowest =
      slowest_rank({time_of(4, 4), time_of(5, 3), time_of(4, 0, 3, 1), time_of(4, 4, 0, 0, 9)});
  EXPECT_EQ(slowest.rank, 2);
  EXPECT_EQ(slowest.ratio, 2);  // 8 over the lower of the middle ones, 4 and 5
  EXPECT_EQ(slowest.more_s, 4);
  EXPECT_EQ(slowest.time.parts, time_of(4, 0, 3, 1).parts);
}

TEST(SlowestRank, OfEqualsIsTheFirst) {
  EXPECT_EQ(slowest_rank({time_of(1, 1), time_of(1, 1)}).rank, 0);
  const SlowestRank idle = slowest_rank({time_of(0, 1)});
  EXPECT_EQ(idle.ratio, 1);
}

TEST(SlowestRank, OneMessageBringsAllNumbers) {
  LocalControl alone(0, 1);
  const RankTime own = time_of(1, 2, 3, 4, 5);
  const std::vector<RankTime> all = gather_times(alone, own);
  ASSERT_EQ(all.size(), 1);
  EXPECT_EQ(all[0].parts, own.parts);
  EXPECT_EQ(all[0].seconds, own.seconds);
}

// How often a watch names a rank in steps where these ranks are slowest; -1: no rank clearly.
std::vector<int> named(std::initializer_list<int> slowest, double ratio = 1.5, double more_s = 1) {
  StragglerWatch watch;
  std::vector<int> all;
  for (const int rank : slowest) {
    const SlowestRank step{
        .rank = std::max(rank, 0), .ratio = rank < 0 ? 1.01 : ratio, .more_s = more_s};
    if (const auto found = watch.add(step, 2)) {
      all.push_back(*found);
    }
  }
  return all;
}

TEST(StragglerWatch, NamesARankOnceThatIsSlowestInEightOfTen) {
  EXPECT_EQ(named({3, 3, 3, 3, 3, 3, 3}), std::vector<int>{});
  EXPECT_EQ(named({3, 3, 3, 3, 3, 3, 3, 3}), std::vector{3});
  EXPECT_EQ(named({3, 3, 1, 3, 3, 3, 2, 3, 3, 3, 3, 3, 3}), std::vector{3});
  EXPECT_EQ(named({3, 3, 1, 3, 3, 1, 3, 3, 1, 3, 3, 1, 3, 3, 1, 3, 3}),
            std::vector<int>{});  // seven of ten
  EXPECT_EQ(named({0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}), (std::vector{0, 1}));
}

TEST(StragglerWatch, ATenthAndAMillisecondAStepAreNeeded) {
  EXPECT_EQ(named({-1, -1, -1, -1, -1, -1, -1, -1, -1, -1}), std::vector<int>{});
  EXPECT_EQ(named({0, 0, 0, 0, 0, 0, 0, 0}, 1.1, 2e-3), std::vector{0});
  EXPECT_EQ(named({0, 0, 0, 0, 0, 0, 0, 0}, 1.09, 2e-3), std::vector<int>{});
  EXPECT_EQ(named({0, 0, 0, 0, 0, 0, 0, 0}, 1.1, 1.9e-3), std::vector<int>{});
}

}  // namespace
}  // namespace tandem::testing
