#include "layers/add/add.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

TEST(Add, GradientsMatchFiniteDifferences) {
  check_gradients({Shape{3, 5}, Shape{3, 5}}, {},
                  [](Context& context, const std::vector<Variable>& in) {
                    const Variable sum = add(context, in[0], in[1]);
                    return add(context, sum, in[0]);
                  });
}

TEST(Add, DevicesAgree) {
  check_devices({Shape{3, 701}, Shape{3, 701}}, {},
                [](Context& context, const std::vector<Variable>& in) {
                  return add(context, add(context, in[0], in[1]), in[0]);
                });
}

// The result takes the memory of a branch that nobody else holds; any other branch stays unchanged.
TEST(Add, ReusesOnlyMemoryOfItsOwn) {
  for_each_device([](Device device) {
    TestContext test(device);
    const Variable x(to_device(random_tensor({100}, DType::kF32, 1), device));
    Variable branch(to_device(random_tensor({100}, DType::kF32, 2), device));
    const std::vector<double> before = values_of(branch.value());
    const Variable kept = add(test.context, x, branch);
    EXPECT_EQ(values_of(branch.value()), before);
    const float* memory = branch.data<float>();
    const Variable reused = add(test.context, x, std::move(branch));
    EXPECT_EQ(reused.data<float>(), memory);
    EXPECT_EQ(values_of(reused.value()), values_of(kept.value()));
  });
}

TEST(Add, ShapesMustAgree) {
  TestContext test;
  const Variable x(random_tensor({2, 3}, DType::kF32, 1)), y(random_tensor({6}, DType::kF32, 1));
  EXPECT_THROW(add(test.context, x, y), Error);
}

}  // namespace
}  // namespace tandem::testing
