#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "optim/step_control.h"
#include "tests/optim/optimizer_check.h"

namespace tandem::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(StepControl, UnscaledStepsAreClipped) {
  const StepOptions options{.clip_norm = 2};
  for_each_device([&](Device device) {
    DeviceState state(device, first_state(options));
    state.decide(64, options);  // a norm of 8
    EXPECT_EQ(state.read().grad_norm, 8);
    EXPECT_EQ(state.read().grad_scale, static_cast<float>(2 / (8 + 1e-6)));
    state.decide(1, options);
    EXPECT_EQ(state.read().grad_norm, 1);
    EXPECT_EQ(state.read().grad_scale, 1);
    EXPECT_EQ(state.read().loss_scale, 1);
    EXPECT_EQ(state.read().apply, 1);
    EXPECT_EQ(state.read().updates, 2);
    EXPECT_EQ(state.read().skipped, 0);
  });
}

// The norm and the clipping are those of the gradients without the loss scale.
TEST(StepControl, TheLossScaleIsTakenOut) {
  const StepOptions options{.clip_norm = 2, .dynamic_scale = true, .initial_scale = 1024};
  for_each_device([&](Device device) {
    DeviceState state(device, first_state(options));
    state.decide(8192.0 * 8192.0, options);
    EXPECT_EQ(state.read().grad_norm, 8);
    EXPECT_EQ(state.read().grad_scale, static_cast<float>(2 / (8 + 1e-6) / 1024));
    state.decide(1024.0 * 1024.0, options);
    EXPECT_EQ(state.read().grad_norm, 1);
    EXPECT_EQ(state.read().grad_scale, 1.0F / 1024);
  });
}

TEST(StepControl, NotFiniteIsNotApplied) {
  for_each_device([&](Device device) {
    DeviceState state(device);
    state.decide(1e76);  // an f32 gradient of 1e38: finite
    EXPECT_EQ(state.read().apply, 1);
    state.decide(kNaN);
    EXPECT_EQ(state.read().apply, 0);
    EXPECT_TRUE(std::isnan(state.read().grad_norm));
    state.decide(kInfinity);
    EXPECT_EQ(state.read().apply, 0);
    EXPECT_EQ(state.read().grad_norm, kInfinity);
    state.decide(4);
    EXPECT_EQ(state.read().apply, 1);
    EXPECT_EQ(state.read().grad_norm, 2);
    EXPECT_EQ(state.read().updates, 2);
    EXPECT_EQ(state.read().skipped, 2);
    EXPECT_EQ(state.read().loss_scale, 1);  // not dynamic: an overflow does not change it
    EXPECT_EQ(state.read().exhausted, 0);
  });
}

TEST(StepControl, NothingIsAppliedAfterAStepThatHalts) {
  const StepOptions options{.halts = true};
  for_each_device([&](Device device) {
    DeviceState state(device, first_state(options));
    for (const bool is_finite : {true, false, true, true}) {
      const StepState before = state.read();
      state.decide(is_finite ? 1 : kNaN, options);
      EXPECT_EQ(state.read().halted, is_finite ? before.halted : 1);
      EXPECT_EQ(state.read().apply, 1 - state.read().halted);
    }
    EXPECT_EQ(state.read().updates, 1);
  });
}

TEST(StepControl, DynamicScalesDoNotHalt) {
  const StepOptions options{.halts = true, .dynamic_scale = true};
  for_each_device([&](Device device) {
    DeviceState state(device, first_state(options));
    state.decide(kInfinity, options);
    EXPECT_EQ(state.read().halted, 0);
    state.decide(1, options);
    EXPECT_EQ(state.read().apply, 1);
  });
}

// Doubled after three clean steps, halved at an overflow, which starts the count again.
TEST(StepControl, GoldenTrajectory) {
  struct Step {
    bool overflow;
    float scale;  // for the next step
    int64_t clean;
  };
  const std::vector<Step> steps = {
      {false, 65536, 1}, {false, 65536, 2}, {false, 131072, 0},  // grows
      {true, 65536, 0},                                          // straight after growing
      {false, 65536, 1}, {false, 65536, 2}, {true, 32768, 0},    // one step before growing
      {false, 32768, 1}, {false, 32768, 2}, {false, 65536, 0},   // grows
      {false, 65536, 1}, {true, 32768, 0},  {true, 16384, 0},    // two in a row
      {false, 16384, 1}, {false, 16384, 2}, {false, 32768, 0},   // grows
      {false, 32768, 1}, {false, 32768, 2}, {false, 65536, 0},   // grows again
  };
  const StepOptions options{.dynamic_scale = true, .growth_steps = 3};
  for_each_device([&](Device device) {
    DeviceState state(device, first_state(options));
    float scale = 65536;
    int64_t updates = 0, skipped = 0;
    for (size_t t = 0; t < steps.size(); ++t) {
      SCOPED_TRACE(t);
      const bool overflow = steps[t].overflow;
      state.decide(overflow ? kInfinity : 4.0 * scale * scale, options);
      const StepState after = state.read();
      updates += overflow ? 0 : 1;
      skipped += overflow ? 1 : 0;
      EXPECT_EQ(after.apply, overflow ? 0 : 1);
      EXPECT_EQ(after.grad_norm, overflow ? kInfinity : 2);
      EXPECT_EQ(after.grad_scale, overflow ? 0 : 1 / scale);  // of the scale that the step used
      EXPECT_EQ(after.loss_scale, steps[t].scale);
      EXPECT_EQ(after.clean_steps, steps[t].clean);
      EXPECT_EQ(after.updates, updates);
      EXPECT_EQ(after.skipped, skipped);
      EXPECT_EQ(after.exhausted, 0);
      scale = after.loss_scale;
    }
  });
}

TEST(StepControl, DefaultsDoubleAfter2000CleanSteps) {
  const StepOptions options{.dynamic_scale = true};
  StepState state = first_state(options);
  EXPECT_EQ(state.loss_scale, 65536);
  state.squared_norm = 1;
  for (int t = 1; t < 2000; ++t) {
    state = decided(state, options);
    ASSERT_EQ(state.loss_scale, 65536) << t;
  }
  state = decided(state, options);
  EXPECT_EQ(state.loss_scale, 131072);
}

TEST(StepControl, AnOverflowAtTheSmallestScaleExhausts) {
  const StepOptions options{.dynamic_scale = true, .initial_scale = 4, .growth_steps = 1};
  for_each_device([&](Device device) {
    DeviceState state(device, first_state(options));
    for (const float lower : {2.0F, 1.0F}) {
      state.decide(kInfinity, options);
      EXPECT_EQ(state.read().loss_scale, lower);
      EXPECT_EQ(state.read().exhausted, 0);
    }
    state.decide(kNaN, options);
    EXPECT_EQ(state.read().loss_scale, 1);
    EXPECT_EQ(state.read().exhausted, 1);
    state.decide(1, options);  // the host may look later
    state.decide(kInfinity, options);
    EXPECT_EQ(state.read().exhausted, 1);
  });
}

TEST(StepControl, TheScaleStaysFinite) {
  const StepOptions options{.dynamic_scale = true, .initial_scale = 0x1p127F, .growth_steps = 1};
  for_each_device([&](Device device) {
    DeviceState state(device, first_state(options));
    state.decide(0, options);
    EXPECT_EQ(state.read().loss_scale, 0x1p127F);
    EXPECT_EQ(state.read().grad_scale, 0x1p-127F);
    EXPECT_EQ(state.read().apply, 1);
  });
}

TEST(StepControl, RefusesAClipNormOutOfRange) {
  const auto message_of = [](const StepOptions& options) -> std::string {
    try {
      first_state(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message_of({}), "no error");
  EXPECT_NE(message_of({.clip_norm = -1}).find("optim.clip_norm = -1"), std::string::npos);
  EXPECT_NE(message_of({.clip_norm = kNaN}).find("optim.clip_norm"), std::string::npos);
}

}  // namespace
}  // namespace tandem::testing
