#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "optim/schedule.h"

namespace tandem {
namespace {

// nanoGPT's set-up for a CPU.
ScheduleOptions options_of(ScheduleKind kind) {
  return {.kind = kind, .lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 100, .steps = 2000};
}

TEST(Schedule, WarmsUpLikeNanoGpt) {
  for (const ScheduleKind kind : {ScheduleKind::kConstant, ScheduleKind::kCosine,
                                  ScheduleKind::kLinear, ScheduleKind::kWsd}) {
    const ScheduleOptions options = options_of(kind);
    EXPECT_EQ(lr_at(options, 0), 1e-3 * 1 / 101);
    EXPECT_EQ(lr_at(options, 49), 1e-3 * 50 / 101);
    EXPECT_EQ(lr_at(options, 99), 1e-3 * 100 / 101);
    EXPECT_EQ(lr_at(options, 100), 1e-3);
  }
}

TEST(Schedule, Constant) {
  const ScheduleOptions options = options_of(ScheduleKind::kConstant);
  EXPECT_EQ(lr_at(options, 1050), 1e-3);
  EXPECT_EQ(lr_at(options, 5000), 1e-3);
}

// Numbers from nanoGPT's get_lr; ours may differ by a few roundings of f64, 2^-53 each.
TEST(Schedule, CosineIsNanoGpts) {
  const ScheduleOptions options = options_of(ScheduleKind::kCosine);
  EXPECT_NEAR(lr_at(options, 575), 8.681980515339464e-4, 1e-17);
  EXPECT_NEAR(lr_at(options, 1050), 5.5e-4, 1e-17);
  EXPECT_NEAR(lr_at(options, 1999), 1.0000061514140841e-4, 1e-17);
  EXPECT_EQ(lr_at(options, 2000), 1e-4);
  EXPECT_EQ(lr_at(options, 9999), 1e-4);
}

TEST(Schedule, LinearFallsEvenly) {
  const ScheduleOptions options = options_of(ScheduleKind::kLinear);
  EXPECT_NEAR(lr_at(options, 575), 7.75e-4, 1e-17);
  EXPECT_NEAR(lr_at(options, 1050), 5.5e-4, 1e-17);
  EXPECT_EQ(lr_at(options, 2000), 1e-4);
}

// The last 400 of 2,000 steps.
TEST(Schedule, WsdFallsOverTheLastFifth) {
  ScheduleOptions options = options_of(ScheduleKind::kWsd);
  EXPECT_EQ(lr_at(options, 1600), 1e-3);
  EXPECT_NEAR(lr_at(options, 1700), 7.75e-4, 1e-17);
  EXPECT_EQ(lr_at(options, 2000), 1e-4);
  options.decay_steps = 1000;
  EXPECT_EQ(lr_at(options, 1000), 1e-3);
  EXPECT_NEAR(lr_at(options, 1500), 5.5e-4, 1e-17);
}

// The first 1,600 steps of a run of 2,000 are those of one of 3,000, too.
TEST(Schedule, WsdNeedNotKnowItsEnd) {
  ScheduleOptions options = options_of(ScheduleKind::kWsd), longer = options;
  longer.steps = 3000;
  for (int64_t step = 0; step <= 1600; ++step) {
    ASSERT_EQ(lr_at(options, step), lr_at(longer, step)) << step;
  }
}

// A decay as long as the run, or longer, begins where the warm-up ends.
TEST(Schedule, WsdFallsAfterWarmUpOnly) {
  ScheduleOptions options = options_of(ScheduleKind::kWsd);
  options.decay_steps = 3000;
  const ScheduleOptions linear = options_of(ScheduleKind::kLinear);
  for (int64_t step = 0; step < 2100; ++step) {
    ASSERT_EQ(lr_at(options, step), lr_at(linear, step)) << step;
  }
}

TEST(Schedule, WithoutWarmUpStartsAtThePeak) {
  ScheduleOptions options = options_of(ScheduleKind::kCosine);
  options.warmup_steps = 0;
  EXPECT_EQ(lr_at(options, 0), 1e-3);
}

// A warm-up as long as the run, or longer, must not divide by zero.
TEST(Schedule, WarmUpAsLongAsTheRun) {
  ScheduleOptions options = options_of(ScheduleKind::kCosine);
  options.warmup_steps = 2000;
  EXPECT_EQ(lr_at(options, 1999), 1e-3 * 2000 / 2001);
  EXPECT_EQ(lr_at(options, 2000), 1e-4);
}

TEST(Schedule, NeverRisesAfterWarmUp) {
  for (const ScheduleKind kind :
       {ScheduleKind::kCosine, ScheduleKind::kLinear, ScheduleKind::kWsd}) {
    const ScheduleOptions options = options_of(kind);
    for (int64_t step = 101; step < 2100; ++step) {
      ASSERT_LE(lr_at(options, step), lr_at(options, step - 1)) << step;
      ASSERT_GE(lr_at(options, step), 1e-4) << step;
    }
  }
}

}  // namespace
}  // namespace tandem
