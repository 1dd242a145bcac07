#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "optim/step_control.h"

namespace tandem {
namespace {

TEST(Clip, LeavesSmallNormsAlone) {
  EXPECT_EQ(clip_factor(0, 1), 1);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
}

// The formula of torch.nn.utils.clip_grad_norm_, including its 1e-6: a norm of exactly max_norm is
// scaled down a little.
TEST(Clip, FollowsPyTorch) {
  EXPECT_EQ(clip_factor(1, 1), 1 / (1 + 1e-6));
  EXPECT_EQ(clip_factor(8, 2), 2 / (8 + 1e-6));
  EXPECT_EQ(clip_factor(1e30, 1), 1 / (1e30 + 1e-6));
}

TEST(Clip, ZeroTurnsItOff) {
  EXPECT_EQ(clip_factor(1e30, 0), 1);
  EXPECT_EQ(clip_factor(0, 0), 1);
}

TEST(Clip, ANormThatIsNotFiniteIsNotHidden) {
  EXPECT_TRUE(std::isnan(clip_factor(std::numeric_limits<double>::quiet_NaN(), 1)));
  EXPECT_EQ(clip_factor(std::numeric_limits<double>::infinity(), 1), 0);
}

}  // namespace
}  // namespace tandem
