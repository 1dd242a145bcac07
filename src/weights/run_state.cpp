#include "src/weights/run_state.h"

#include <cmath>

#include "src/core/error.h"

namespace tandem {

namespace {

constexpr std::string_view kExponent = "exponent/";

}  // namespace

void RunState::take(const StepState& state, const StepOptions& options) {
  skipped = state.skipped;
  loss_scale.reset();
  if (options.dynamic_scale) {
    loss_scale = {.value = state.loss_scale, .clean_steps = state.clean_steps};
  }
}

StepState RunState::step_state(const StepOptions& options) const {
  StepState state = first_state(options);
  state.updates = step - skipped - skipped_batches;
  state.skipped = skipped;
  if (options.dynamic_scale && loss_scale) {
    state.loss_scale = loss_scale->value;
    state.clean_steps = loss_scale->clean_steps;
  }
  return state;
}

void RunState::write(Manifest& manifest) const {
  manifest.step = step;
  manifest.validation_loss = val_loss;
  manifest.schedule = {{"skipped_steps", static_cast<double>(skipped)}};
  if (skipped_batches > 0) {
    manifest.schedule["skipped_batches"] = static_cast<double>(skipped_batches);
  }
  if (loss_scale) {
    manifest.schedule["loss_scale"] = loss_scale->value;
    manifest.schedule["clean_steps"] = static_cast<double>(loss_scale->clean_steps);
  }
  if (std::isfinite(best_val_loss)) {
    manifest.schedule["best_val_loss"] = best_val_loss;
  }
  for (const auto& [name, exponent] : exponents) {
    manifest.schedule[std::string(kExponent) + name] = exponent;
  }
}

RunState RunState::read(const Manifest& manifest) {
  RunState state{.step = manifest.step, .val_loss = manifest.validation_loss};
  const auto require_possible = [&](bool possible, const std::string& name, double value) {
    if (!possible) {
      fail_data("the manifest of step ", manifest.step, " says ", name, " = ", value,
                ", which cannot be: damaged; use another checkpoint");
    }
  };
  const auto steps = [&](const std::string& name, double value) {
    require_possible(
        value >= 0 && value <= static_cast<double>(state.step) && value == std::trunc(value), name,
        value);
    return static_cast<int64_t>(value);
  };
  // The limit is that of train.steps: no product with a batch overflows.
  require_possible(state.step <= int64_t{1} << 40, "step", static_cast<double>(state.step));
  for (const auto& [name, value] : manifest.schedule) {
    if (name == "best_val_loss") {
      state.best_val_loss = value;
    } else if (name == "skipped_batches") {
      state.skipped_batches = steps(name, value);
    } else if (name.starts_with(kExponent)) {
      require_possible(value >= INT32_MIN && value <= INT32_MAX && value == std::trunc(value), name,
                       value);
      state.exponents[name.substr(kExponent.size())] = static_cast<int32_t>(value);
    }
  }
  const auto number = [&](const std::string& name) {
    const auto found = manifest.schedule.find(name);
    if (found == manifest.schedule.end()) {
      fail_data("the manifest of step ", manifest.step, " has no ", name,
                ": not one of a run; use another checkpoint");
    }
    return found->second;
  };
  state.skipped = steps("skipped_steps", number("skipped_steps"));
  require_possible(state.skipped + state.skipped_batches <= state.step, "skipped_steps",
                   number("skipped_steps"));
  if (manifest.schedule.contains("loss_scale")) {
    const double scale = number("loss_scale");
    require_possible(scale > 0 && scale <= std::numeric_limits<float>::max(), "loss_scale", scale);
    state.loss_scale = {.value = static_cast<float>(scale),
                        .clean_steps = steps("clean_steps", number("clean_steps"))};
  }
  return state;
}

}  // namespace tandem
