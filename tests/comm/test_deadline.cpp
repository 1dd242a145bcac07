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

TEST(Deadline, OfOneThatStoodStillIsLater) {
  Deadline deadline(kTimeout_s);
  EXPECT_FALSE(deadline.is_over(1));
  EXPECT_FALSE(deadline.is_over(130));
  EXPECT_EQ(deadline.seconds(), 180);
  for (double waited = 130.5; waited <= 180.5; waited += 0.5) {
    EXPECT_FALSE(deadline.is_over(waited));
  }
  EXPECT_TRUE(deadline.is_over(181));
}

TEST(Deadline, OfALookThatStoodStillIsLater) {
  Deadline deadline(kTimeout_s);
  for (double waited = 0; waited <= 60.5; waited += 0.5) {
    EXPECT_FALSE(deadline.is_over(waited));
  }
  EXPECT_FALSE(deadline.is_over(100));
  EXPECT_EQ(deadline.seconds(), 120);
  EXPECT_FALSE(deadline.is_over(101));
}

TEST(Deadline, IsNeverMoreThanTenTimes) {
  Deadline deadline(kTimeout_s);
  EXPECT_FALSE(deadline.is_over(595));
  EXPECT_EQ(deadline.seconds(), 600);
  EXPECT_TRUE(deadline.is_over(900));
}

}  // namespace
}  // namespace tandem
