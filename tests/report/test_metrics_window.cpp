#include <gtest/gtest.h>

#include <chrono>

#include "layers/models/mlp.h"
#include "src/report/metrics_window.h"
#include "tests/support/set_config.h"

namespace tandem {
namespace {

// A checkpoint is committed after the next step was enqueued, while the step before it has no line
// yet.
TEST(MetricsWindow, TimeLeftOutAfterAStepBelongsToTheNextOne) {
  World world;
  Machine machine({.device = Device::kCpu}, {}, world);
  const Mlp model(
      {.image_height = 2, .image_width = 2, .channels = 1, .layers = 1, .width = 2, .classes = 2});
  Config config;
  set(config, "model.kind", "mlp");
  config.train.global_batch = 1;
  MetricsWindow window(machine, model, DType::kF32, config, nullptr);
  const auto seconds_of = [&](const MetricsWindow::Mark& end) {
    StepMetrics metrics;
    window.add(end, {});
    window.close(end, true, metrics);
    return metrics.seconds;
  };
  window.begin();
  const MetricsWindow::Mark first = window.mark();
  window.leave_out_time(std::chrono::hours(24));
  EXPECT_GT(seconds_of(first), 0);
  EXPECT_LT(seconds_of(window.mark()), 0);  // no step has a day to be left out of
}

}  // namespace
}  // namespace tandem
