// The order in which buckets start.
#include <gtest/gtest.h>

#include "comm/sharding/launch_order.h"
#include "src/core/error.h"

namespace tandem::testing {
namespace {

struct Recorded {
  std::vector<int64_t> order;
  LaunchOrder turns{[this](int64_t index) { order.push_back(index); }};

  void begin(std::vector<bool> takes_part) {
    order.clear();
    turns.begin(std::move(takes_part));
  }
};

TEST(LaunchOrder, StartInReverseOrderWhateverIsReadyFirst) {
  for (const std::vector<int64_t>& ready :
       {std::vector<int64_t>{3, 2, 1, 0}, {0, 1, 2, 3}, {2, 3, 0, 1}, {1, 3, 2, 0}}) {
    Recorded recorded;
    recorded.begin({true, true, true, true});
    for (int64_t bucket : ready) {
      recorded.turns.ready(bucket);
    }
    EXPECT_EQ(recorded.order, (std::vector<int64_t>{3, 2, 1, 0})) << "before finish()";
    recorded.turns.finish();
    EXPECT_EQ(recorded.order.size(), 4u);
  }
}

TEST(LaunchOrder, AReadyOneWaitsForItsTurn) {
  Recorded recorded;
  recorded.begin({true, true, true, true});
  recorded.turns.ready(2);
  EXPECT_TRUE(recorded.order.empty());
  recorded.turns.ready(3);
  EXPECT_EQ(recorded.order, (std::vector<int64_t>{3, 2}));
  recorded.turns.ready(0);
  EXPECT_EQ(recorded.order.size(), 2u);
  recorded.turns.finish();  // 1 never became ready
  EXPECT_EQ(recorded.order, (std::vector<int64_t>{3, 2, 1, 0}));
}

TEST(LaunchOrder, ThoseThatDoNotTakePartHoldNobodyUp) {
  Recorded recorded;
  for (int round = 0; round < 2; ++round) {
    recorded.begin({true, false, true, false});
    EXPECT_TRUE(recorded.turns.takes_part(2));
    EXPECT_FALSE(recorded.turns.takes_part(3));
    recorded.turns.ready(2);
    EXPECT_FALSE(recorded.turns.takes_part(2)) << "ready already";
    recorded.turns.ready(0);
    EXPECT_EQ(recorded.order, (std::vector<int64_t>{2, 0}));
    recorded.turns.finish();
    EXPECT_EQ(recorded.order.size(), 2u);
  }
}

TEST(LaunchOrder, MisuseIsAnError) {
  Recorded recorded;
  EXPECT_THROW(recorded.turns.ready(0), Error);  // before begin()
  recorded.begin({true, true, false});
  EXPECT_THROW(recorded.turns.begin({true}), Error);
  recorded.turns.ready(0);
  EXPECT_THROW(recorded.turns.ready(0), Error);
  EXPECT_THROW(recorded.turns.ready(2), Error);
  EXPECT_THROW(recorded.turns.ready(3), Error);
}

}  // namespace
}  // namespace tandem::testing
