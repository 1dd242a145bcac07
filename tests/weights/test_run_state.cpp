#include <gtest/gtest.h>

#include <limits>

#include "src/weights/run_state.h"
#include "tests/support/harness.h"

namespace tandem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Writes the state as a checkpoint does, and reads it back.
RunState read_back(const RunState& state) {
  Manifest manifest;
  state.write(manifest);
  return RunState::read(manifest_from_json(to_json(manifest), "m"));
}

RunState full_state() {
  return {.step = int64_t{1} << 40,
          .skipped = 7,
          .skipped_batches = 5,
          .loss_scale = RunState::LossScale{.value = 0.1F, .clean_steps = 1999},
          .exponents = {{"param/a/b", 149}, {"param/c", -126}, {"stat/0", INT32_MIN}},
          .val_loss = 1.0 / 3.0,
          .best_val_loss = 0.1 + 0.2};
}

TEST(RunState, SurvivesExactly) {
  EXPECT_EQ(read_back(full_state()), full_state());
  EXPECT_EQ(read_back({}), RunState());
  EXPECT_EQ(read_back({.best_val_loss = 5e-324}).best_val_loss, 5e-324);
}

// Each number by itself, and skipped steps together: there are no more of them than steps.
TEST(RunState, NumbersThatCannotBeAreRefused) {
  const std::map<std::string, std::vector<double>> impossible = {
      {"skipped_steps", {-1, 0.5, 101, 96, 1e300, -1e300}},
      {"skipped_batches", {-1, 0.5, 101}},
      {"loss_scale", {0, -1, 1e39}},
      {"clean_steps", {-1, 0.5, 101}},
      {"exponent/param/c", {0.5, 1e300, -1e300, 2147483648.0}}};
  RunState state = full_state();
  state.step = 100;
  state.loss_scale->clean_steps = 100;
  EXPECT_EQ(read_back(state), state);
  for (const auto& [name, values] : impossible) {
    for (const double value : values) {
      Manifest manifest;
      state.write(manifest);
      ASSERT_TRUE(manifest.schedule.contains(name));
      manifest.schedule[name] = value;
      EXPECT_NE(testing::message_of([&] { RunState::read(manifest); }).find(name),
                std::string::npos)
          << name << " = " << value;
    }
  }
  state.step = (int64_t{1} << 40) + 1;
  EXPECT_THROW(read_back(state), Error);
}

// The file keeps the names of format 1, which other versions of the program read and write.
TEST(RunState, TheNamesInTheFileStay) {
  Manifest manifest;
  full_state().write(manifest);
  EXPECT_EQ(manifest.step, full_state().step);
  EXPECT_EQ(manifest.validation_loss, 1.0 / 3.0);
  const std::map<std::string, double> schedule = {
      {"skipped_steps", 7},
      {"skipped_batches", 5},
      {"loss_scale", static_cast<double>(0.1F)},
      {"clean_steps", 1999},
      {"best_val_loss", 0.1 + 0.2},
      {"exponent/param/a/b", 149},
      {"exponent/param/c", -126},
      {"exponent/stat/0", INT32_MIN},
  };
  EXPECT_EQ(manifest.schedule, schedule);
  RunState().write(manifest);
  EXPECT_EQ(manifest.schedule, (std::map<std::string, double>{{"skipped_steps", 0}}));
  EXPECT_EQ(manifest.validation_loss, std::nullopt);
}

TEST(RunState, ABestLossThatIsNotFiniteIsNone) {
  for (const double loss : {kInfinity, -kInfinity, kNaN}) {
    Manifest manifest;
    RunState{.best_val_loss = loss}.write(manifest);
    EXPECT_FALSE(manifest.schedule.contains("best_val_loss")) << loss;
    EXPECT_EQ(read_back({.best_val_loss = loss}).best_val_loss, kInfinity) << loss;
  }
}

// The state after a step is the state from which the next step starts.
TEST(RunState, AStepGoesOnFromTheStateOfTheLastOne) {
  const StepOptions fp16{.dynamic_scale = true};
  const StepState before{
      .updates = 9, .skipped = 3, .clean_steps = 8, .loss_scale = 0.375F, .grad_scale = 0.5F};
  RunState state{.step = 14, .skipped_batches = 2};
  state.take(before, fp16);
  const StepState after = read_back(state).step_state(fp16);
  EXPECT_EQ(after.updates, 9);
  EXPECT_EQ(after.skipped, 3);
  EXPECT_EQ(after.clean_steps, 8);
  EXPECT_EQ(after.loss_scale, 0.375F);
  EXPECT_EQ(after.grad_scale, first_state(fp16).grad_scale);
  EXPECT_EQ(after.exhausted, 0);
}

// A run that is resumed starts from before the step that halted it.
TEST(RunState, AResumedRunIsNotHalted) {
  const StepOptions options{.halts = true};
  RunState state{.step = 12};
  state.take({.updates = 11, .skipped = 1, .halted = 1}, options);
  EXPECT_EQ(read_back(state).step_state(options).halted, 0);
}

// A run may go on in another precision: fp16 then begins with the initial loss scale, and other
// precisions have none.
TEST(RunState, TheLossScaleIsThatOfThePrecision) {
  const StepOptions fp16{.dynamic_scale = true}, bf16{};
  RunState state{.step = 12};
  state.take({.updates = 9, .skipped = 3, .clean_steps = 8, .loss_scale = 1}, bf16);
  EXPECT_EQ(state.loss_scale, std::nullopt);
  EXPECT_EQ(state.step_state(fp16).loss_scale, fp16.initial_scale);
  EXPECT_EQ(state.step_state(fp16).clean_steps, 0);
  EXPECT_EQ(state.step_state(fp16).updates, 9);
  state.take({.updates = 9, .skipped = 3, .clean_steps = 8, .loss_scale = 64}, fp16);
  EXPECT_EQ(state.step_state(bf16).loss_scale, 1);
  EXPECT_EQ(state.step_state(bf16).clean_steps, 0);
  state.take(state.step_state(bf16), bf16);
  EXPECT_EQ(state.loss_scale, std::nullopt);
}

}  // namespace
}  // namespace tandem
