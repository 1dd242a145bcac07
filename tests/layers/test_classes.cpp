// Parameters whose rows are classes, stored with padding (src/autograd/parameter.h): the loss of a
// linear classifier and its gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "layers/cross_entropy/cross_entropy.h"
#include "layers/linear/linear.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

constexpr int64_t kSizes[] = {5, 8, 65, 1023, 1024, 1025, 50257};
constexpr int64_t kRows = 3, kWidth = 8;

TEST(Classes, ArePaddedOnAGpuAlone) {
  const auto stored = [](int64_t classes, Device device) {
    return stored_shape({.name = "p", .shape = {classes, 3}, .classes = true}, device);
  };
  const std::pair<int64_t, int64_t> expected[] = {
      {1, 8}, {5, 8}, {8, 8}, {65, 72}, {1023, 1024}, {1024, 1024}, {1025, 1152}, {50257, 50304}};
  for (const auto& [classes, padded] : expected) {
    EXPECT_EQ(stored(classes, Device::kCuda), Shape({padded, 3}));
    EXPECT_EQ(stored(classes, Device::kCpu), Shape({classes, 3}));
  }
  EXPECT_EQ(stored_shape({.name = "p", .shape = {5}, .classes = true}, Device::kCuda), Shape({8}));
  EXPECT_EQ(stored_shape({.name = "p", .shape = {5, 3}}, Device::kCuda), Shape({5, 3}));
}

// Multiples of 1/2 from -1 to 1. So products and their sums are exact in every type and order.
Tensor halves(const Shape& shape, uint64_t seed) {
  const Tensor values = random_tensor(shape, DType::kF32, seed);
  for (float& value : values.as<float>()) {
    value = std::round(2 * std::clamp(value, -1.0f, 1.0f)) / 2;
  }
  return values;
}

// Random values, stored with `stored` rows; those after the parameter's own are zero.
void bind(Parameter& parameter, int64_t stored, Device device, DType dtype, uint64_t seed) {
  const Tensor own = halves(parameter.shape, seed);
  const Tensor all = random_tensor(parameter.shape.with(0, stored), DType::kF32, seed, 0);
  std::ranges::copy(own.as<float>(), all.as<float>().begin());
  parameter.value = to_device(rounded_to(all, dtype), device);
  parameter.grad = unwritten(all.shape(), DType::kF32, device);
}

struct Results {
  std::vector<double> losses, dx, dweight, dbias;  // without padding
  int64_t correct = 0;
  std::vector<double> padding;  // the gradients of padding
};

Results results_of(int64_t classes, int64_t stored, Device device, DType dtype) {
  Parameter weight{.name = "weight", .shape = {classes, kWidth}};
  Parameter bias{.name = "bias", .shape = {classes}};
  bind(weight, stored, device, dtype, 1);
  bind(bias, stored, device, dtype, 2);
  weight.id = 0;
  bias.id = 1;
  const auto last = static_cast<int32_t>(classes - 1);
  const Tensor targets =
      to_device(int_tensor({kRows}, std::vector<int32_t>{last, kIgnoreTarget, 0}), device);
  TestContext test(device);
  const Variable x =
      Variable::leaf(to_device(rounded_to(halves({kRows, kWidth}, 3), dtype), device));
  const Variable logits = linear(test.context, x, weight, &bias);
  EXPECT_EQ(logits.shape(), Shape({kRows, stored}));
  Results results;
  results.correct =
      to_host(count_correct(test.context, logits.value(), targets, classes)).as<int64_t>()[0];
  const Variable losses = cross_entropy(test.context, logits, targets, classes);
  results.losses = values_of(losses.value());
  test.tape.backward(test.context, losses, 1.0);
  results.dx = values_of(x.slot()->grad);
  const auto divide = [&](const Tensor& gradient, int64_t own) {
    std::vector<double> values = values_of(gradient);
    results.padding.insert(results.padding.end(), values.begin() + own, values.end());
    values.resize(static_cast<size_t>(own));
    return values;
  };
  results.dweight = divide(weight.grad, classes * kWidth);
  results.dbias = divide(bias.grad, classes);
  return results;
}

void expect_near(const char* what, const std::vector<double>& padded,
                 const std::vector<double>& plain, double tolerance) {
  ASSERT_EQ(padded.size(), plain.size());
  for (size_t i = 0; i < padded.size(); ++i) {
    ASSERT_NEAR(padded[i], plain[i], tolerance) << what << " " << i;
  }
}

// Logits are exact. A row's exponentials are added in another order where rows begin elsewhere in
// 16 bytes. The errors of n additions, of either sign, come to about sqrt(n) 2^-24 of the sum; 4
// times that is allowed for the difference of two, and as much for log_sum's own rounding, as it is
// below 16. So probabilities differ by this share `e` of themselves, and then by at most one unit u
// of their type. Magnitudes of x and of the weights are at most 1, those of a row's gradient add up
// to less than 2. So dbias and dweight, sums over rows, are off by kRows (e + u), and dx, a sum
// over the classes, by 2 (2 e + u), before it is rounded to the type.
TEST(Classes, PaddingChangesNoResultAndHasNoGradient) {
  for_each_device([](Device device) {
    for (const auto& [dtype, unit] :
         {std::pair{DType::kF32, 0x1p-23}, {DType::kBf16, 0x1p-7}, {DType::kFp16, 0x1p-10}}) {
      for (const int64_t classes : kSizes) {
        SCOPED_TRACE(str(name_of(device), ", ", name_of(dtype), ", ", classes, " classes"));
        const int64_t stored =
            stored_shape({.name = "p", .shape = {classes}, .classes = true}, Device::kCuda)[0];
        const Results padded = results_of(classes, stored, device, dtype);
        const Results plain = results_of(classes, classes, device, dtype);
        EXPECT_EQ(padded.correct, plain.correct);
        const double share = 4 * std::sqrt(static_cast<double>(classes)) * 0x1p-24 + 0x1p-20;
        expect_near("loss", padded.losses, plain.losses, share);
        expect_near("dweight", padded.dweight, plain.dweight, kRows * (share + unit));
        expect_near("dbias", padded.dbias, plain.dbias, kRows * (share + unit));
        expect_near("dx", padded.dx, plain.dx, 2 * (2 * share + unit) + 2 * unit);
        EXPECT_EQ(padded.padding,
                  std::vector<double>(static_cast<size_t>((stored - classes) * (kWidth + 1)), 0.0));
      }
    }
  });
}

}  // namespace
}  // namespace tandem::testing
