#include <cmath>

#include "layers/batchnorm2d/running_statistics.h"
#include "src/device/dispatch.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

// With an odd count, the last thread of a GPU has less than a whole pack.
constexpr int64_t kCount = 1027;

struct Outcome {
  std::vector<double> running, sum;
};

Outcome update(Device device, const Tensor& running, const Tensor& sum, int32_t apply) {
  const Tensor own = to_device(running, device), added = to_device(sum, device);
  const Tensor flag = to_device(int_tensor({1}, std::vector<int32_t>{apply}), device);
  on_device(test_stream(device), {}, [&](auto on) {
    kernels::update_running(on, kCount, own.data<float>(), added.data<float>(), 0.125f, 0.5f,
                            flag.data<int32_t>());
  });
  return {values_of(own), values_of(added)};
}

// The factors are powers of two and 7/8, so an f32 result has only the rounding errors of its sum
// and of one product.
TEST(RunningStatistics, MoveTowardsTheSumWhichIsCleared) {
  const Tensor running = random_tensor({kCount}, DType::kF32, 1);
  const Tensor sum = random_tensor({kCount}, DType::kF32, 2);
  const std::vector<double> before = values_of(running), added = values_of(sum);
  for_each_device([&](Device device) {
    const Outcome outcome = update(device, running, sum, 1);
    for (size_t i = 0; i < before.size(); ++i) {
      const double expected = 0.875 * before[i] + 0.5 * added[i];
      const double size = std::abs(before[i]) + std::abs(added[i]);
      ASSERT_NEAR(outcome.running[i], expected, 2 * 0x1p-24 * size) << i;
    }
    EXPECT_EQ(outcome.sum, std::vector<double>(kCount, 0));
  });
}

TEST(RunningStatistics, AStepThatIsSkippedClearsTheSumAlone) {
  const Tensor running = random_tensor({kCount}, DType::kF32, 1);
  const Tensor sum = random_tensor({kCount}, DType::kF32, 2);
  for_each_device([&](Device device) {
    const Outcome outcome = update(device, running, sum, 0);
    EXPECT_EQ(outcome.running, values_of(running));
    EXPECT_EQ(outcome.sum, std::vector<double>(kCount, 0));
  });
}

}  // namespace
}  // namespace tandem::testing
