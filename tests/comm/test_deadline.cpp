#include <gtest/gtest.h>

#include "comm/transport/deadline.h"

namespace tandem {
namespace {

const std::atomic<double> kTimeout_s = 60;

// Without flight records no rank is known to be late.
TEST(Deadline, IsOverAfterTheTimeOut) {
  Deadline deadline(kTimeout_s);
  for (double waited = 0; waited <= 60; waited += 0.5) {
    EXPECT_FALSE(deadline.is_over(waited));
  }
  EXPECT_FALSE(deadline.is_over(60.5));  // The records were looked at, which may take long.
  EXPECT_TRUE(deadline.is_over(61));
  EXPECT_EQ(deadline.seconds(), 60);
}

TEST(Deadline, TimeInWhichItStoodStillDoesNotCount) {
  Deadline deadline(kTimeout_s);
  EXPECT_FALSE(deadline.is_over(1));
  EXPECT_FALSE(deadline.is_over(131));
  EXPECT_EQ(deadline.seconds(), 130 + 2 * 60);
  for (double waited = 131.5; waited <= 250.5; waited += 0.5) {
    EXPECT_FALSE(deadline.is_over(waited));
  }
  EXPECT_TRUE(deadline.is_over(251));
}

// If each look takes long, it is over all the same.
TEST(Deadline, ALookThatTookLongIsRepeatedOnce) {
  Deadline deadline(kTimeout_s);
  for (double waited = 0; waited <= 60.5; waited += 0.5) {
    EXPECT_FALSE(deadline.is_over(waited));
  }
  EXPECT_FALSE(deadline.is_over(100.5));
  EXPECT_EQ(deadline.seconds(), 40 + 2 * 60);
  for (double waited = 101; waited <= 160.5; waited += 0.5) {
    EXPECT_FALSE(deadline.is_over(waited));
  }
  EXPECT_TRUE(deadline.is_over(200.5));
}

}  // namespace
}  // namespace tandem
