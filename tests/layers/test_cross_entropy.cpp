#include <algorithm>
#include <cmath>

#include "layers/add/add.h"
#include "layers/cross_entropy/cross_entropy.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

// The logits are the result of a sum, because the op overwrites them.
TEST(CrossEntropy, GradientsMatchFiniteDifferences) {
  for (int64_t classes : {1, 3, 65}) {
    const Tensor targets = int_tensor(
        {4}, std::vector<int32_t>{0, static_cast<int32_t>(classes) - 1, kIgnoreTarget, 0});
    check_gradients({Shape{4, classes}, Shape{4, classes}}, {},
                    [&](Context& context, const std::vector<Variable>& in) {
                      return cross_entropy(context, add(context, in[0], in[1]), targets);
                    });
  }
}

// Rows that begin inside a 16-byte pack, rows with more packs than a block has threads, rows that
// in 16 bits only some GPUs hold in shared memory, and rows that in f32 are longer than it.
TEST(CrossEntropy, DevicesAgree) {
  for (int64_t classes : {1, 3, 65, 128, 2103, 20003, 60001, 85001}) {
    const int32_t last = static_cast<int32_t>(classes) - 1;
    const Tensor targets =
        int_tensor({5}, std::vector<int32_t>{0, last, kIgnoreTarget, last / 2, 0});
    check_devices({Shape{5, classes}}, {},
                  [&](Context& context, const std::vector<Variable>& in) {
                    return cross_entropy(context, in[0],
                                         to_device(targets, context.stream.device()));
                  },
                  {.terms = classes + 16});
  }
}

// Tolerance in f32: with logits of order one, a sum of 65 exponentials has a relative error below
// 65 * 2^-24 = 4e-6.
TEST(CrossEntropy, LossesMatchTheDefinition) {
  const int64_t rows = 10, classes = 65;
  const Tensor logits = random_tensor({rows, classes}, DType::kF32, 2);
  std::vector<int32_t> targets(rows);
  for (int64_t n = 0; n < rows; ++n) {
    targets[n] = n == 4 ? kIgnoreTarget : static_cast<int32_t>(7 * n % classes);
  }
  TestContext test;
  const Variable losses =
      cross_entropy(test.context, Variable(logits), int_tensor({rows}, targets));
  ASSERT_EQ(losses.shape(), (Shape{rows}));
  for (int64_t n = 0; n < rows; ++n) {
    double total = 0;
    for (int64_t j = 0; j < classes; ++j) {
      total += std::exp(static_cast<double>(logits.data<float>()[n * classes + j]));
    }
    const double expected =
        n == 4 ? 0 : std::log(total) - logits.data<float>()[n * classes + targets[n]];
    EXPECT_NEAR(losses.data<float>()[n], expected, 1e-5);
  }
}

TEST(CrossEntropy, GradientTakesTheMemoryOfTheLogits) {
  const Variable logits = Variable::leaf(random_tensor({3, 5}, DType::kF32, 2));
  const Tensor targets = int_tensor({3}, std::vector<int32_t>{1, kIgnoreTarget, 4});
  TestContext test;
  test.tape.backward(test.context, cross_entropy(test.context, logits, targets), 0.5);
  const Tensor grad = logits.slot()->grad;
  EXPECT_EQ(grad.data<float>(), logits.data<float>());
  for (int64_t n = 0; n < 3; ++n) {
    double total = 0, largest = 0;
    for (int64_t j = 0; j < 5; ++j) {
      total += grad.data<float>()[n * 5 + j];
      largest = std::max(largest, std::abs(static_cast<double>(grad.data<float>()[n * 5 + j])));
    }
    EXPECT_NEAR(total, 0, 1e-6);  // probabilities sum to one, up to 5 roundings of 2^-24
    EXPECT_EQ(largest == 0, n == 1) << "row " << n;
  }
}

std::vector<double> losses_of(Device device, const Tensor& logits, std::vector<int32_t> targets) {
  TestContext test(device);
  const int64_t rows = static_cast<int64_t>(targets.size());
  const Variable x(to_device(logits, device));
  return values_of(
      cross_entropy(test.context, x, to_device(int_tensor({rows}, targets), device)).value());
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  const Tensor logits = random_tensor({2, 40}, DType::kF32, 2, 1e4);
  for_each_device([&](Device device) {
    for (double value : losses_of(device, logits, {3, 39})) {
      EXPECT_TRUE(std::isfinite(value) && value >= 0) << value;
    }
  });
}

TEST(CrossEntropy, NotANumberStays) {
  for (float bad : {NAN, INFINITY}) {
    Tensor logits = random_tensor({2, 40}, DType::kF32, 2);
    logits.data<float>()[20] = bad;
    for_each_device([&](Device device) {
      const std::vector<double> losses = losses_of(device, logits, {3, 3});
      EXPECT_FALSE(std::isfinite(losses[0]));
      EXPECT_TRUE(std::isfinite(losses[1]));
    });
  }
}

// Classes with a logit of minus infinity do not enter the sum, wherever they stand.
TEST(CrossEntropy, MinusInfinityIsNoClass) {
  const Tensor two = random_tensor({1, 2}, DType::kF32, 2);
  Tensor logits = Tensor::empty(test_memory(), {1, 600}, DType::kF32, MemoryClass::kData);
  std::fill_n(logits.data<float>(), 600, -INFINITY);
  logits.data<float>()[3] = two.data<float>()[0];
  logits.data<float>()[599] = two.data<float>()[1];
  for_each_device([&](Device device) {
    EXPECT_NEAR(losses_of(device, logits, {599})[0], losses_of(device, two, {1})[0], 1e-6);
  });
}

struct Results {
  int64_t correct = 0;
  std::vector<double> losses, gradient;
  bool operator==(const Results&) const = default;
};

// The results for logits [4, classes] in rows of `width`, whose rest is NaN.
Results results_of(Device device, DType dtype, int64_t classes, int64_t width) {
  const Tensor values = random_tensor({4, classes}, DType::kF32, 5);
  const Tensor logits = unwritten({4, width}, DType::kF32);
  for (int64_t n = 0; n < 4; ++n) {
    std::copy_n(values.data<float>() + n * classes, classes, logits.data<float>() + n * width);
  }
  const auto last = static_cast<int32_t>(classes - 1);
  const Tensor targets =
      to_device(int_tensor({4}, std::vector<int32_t>{last, 0, kIgnoreTarget, last / 2}), device);
  TestContext test(device);
  const Variable x = Variable::leaf(to_device(rounded_to(logits, dtype), device));
  const auto given = width == classes ? std::nullopt : std::optional(classes);
  Results results;
  results.correct =
      to_host(count_correct(test.context, x.value(), targets, given)).data<int64_t>()[0];
  const Variable losses = cross_entropy(test.context, x, targets, given);
  results.losses = values_of(losses.value());
  test.tape.backward(test.context, losses, 0.5);
  const std::vector<double> gradient = values_of(x.slot()->grad);
  for (int64_t i = 0; i < 4 * width; ++i) {
    if (i % width < classes) {
      results.gradient.push_back(gradient[i]);
    } else {
      EXPECT_EQ(gradient[i], 0) << "row " << i / width << ", column " << i % width;
    }
  }
  return results;
}

// Rows that begin at the same place in a 16-byte pack are summed in the same order: equal bits.
TEST(CrossEntropy, ColumnsAfterTheClassesHaveNoPart) {
  for_each_device([](Device device) {
    for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      for (int64_t classes : {8, 64, 2104}) {
        SCOPED_TRACE(str(name_of(device), ", ", name_of(dtype), ", ", classes, " classes"));
        EXPECT_EQ(results_of(device, dtype, classes, classes + 24),
                  results_of(device, dtype, classes, classes));
      }
    }
  });
}

// What a loss in training gives: losses, and gradients that begin in forward.
Results results_in_training(Device device, const Tensor& logits, const Tensor& targets) {
  TestContext test(device);
  const Tensor scale = Tensor::empty(test_memory(), {1}, DType::kF32, MemoryClass::kData);
  *scale.data<float>() = 0.375f;
  const Tensor gradient = to_device(scale, device);
  test.context.loss_gradient = gradient.data<float>();
  const Variable x = Variable::leaf(to_device(logits, device));
  const Variable losses = cross_entropy(test.context, x, to_device(targets, device));
  EXPECT_FALSE(losses.wanted());
  test.tape.backward(test.context);
  return {.correct = 0, .losses = values_of(losses.value()), .gradient = values_of(x.slot()->grad)};
}

Results results_in_two_passes(Device device, const Tensor& logits, const Tensor& targets) {
  TestContext test(device);
  const Variable x = Variable::leaf(to_device(logits, device));
  const Variable losses = cross_entropy(test.context, x, to_device(targets, device));
  const std::vector<double> values = values_of(losses.value());
  test.tape.backward(test.context, losses, 0.375);
  return {.correct = 0, .losses = values, .gradient = values_of(x.slot()->grad)};
}

// Losses with their gradient have the bits of losses alone, and of a backward pass. The rows: of
// one class; of bytes; of packs and remainders in blocks of 256 and of 1024 threads; and rows that
// no shared memory holds.
TEST(CrossEntropy, InOnePassTheBitsAreThoseOfTwo) {
  for_each_device([](Device device) {
    for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      for (int64_t classes : {1, 7, 1024, 2103, 20003, 60001, 85001}) {
        SCOPED_TRACE(str(name_of(device), ", ", name_of(dtype), ", ", classes, " classes"));
        const Tensor logits = rounded_to(random_tensor({3, classes}, DType::kF32, 5), dtype);
        const Tensor targets = int_tensor(
            {3}, std::vector<int32_t>{static_cast<int32_t>(classes - 1), kIgnoreTarget, 0});
        EXPECT_EQ(results_in_training(device, logits, targets),
                  results_in_two_passes(device, logits, targets));
      }
    }
  });
}

// Eleven long rows are more than a block of a GPU takes one after the other. Each has the bits that
// it has alone, whatever rows are ignored beside it. Of the rows of 60,000 classes less than two
// fit shared memory, of those of 20,000 more than two.
TEST(CrossEntropy, EachRowHasTheBitsThatItHasAlone) {
  const std::vector<int32_t> targets{
      kIgnoreTarget, 7, 0, 19999, kIgnoreTarget, kIgnoreTarget, 8, 12345, 1, 100, kIgnoreTarget};
  const auto rows = static_cast<int64_t>(targets.size());
  for_each_device([&](Device device) {
    for (int64_t classes : {20000, 60000}) {
      SCOPED_TRACE(str(name_of(device), ", ", classes, " classes"));
      const Tensor all = rounded_to(random_tensor({rows, classes}, DType::kF32, 5), DType::kBf16);
      const Results together = results_in_training(device, all, int_tensor({rows}, targets));
      Results alone;
      for (int64_t n = 0; n < rows; ++n) {
        const Tensor row = unwritten({1, classes}, DType::kBf16);
        std::copy_n(all.data<Bf16>() + n * classes, classes, row.data<Bf16>());
        const Results result = results_in_training(device, row, int_tensor({1}, {&targets[n], 1}));
        alone.losses.push_back(result.losses[0]);
        alone.gradient.insert(alone.gradient.end(), result.gradient.begin(), result.gradient.end());
      }
      EXPECT_TRUE(together == alone);
    }
  });
}

// Without a tape nothing is differentiated, and the logits stay.
TEST(CrossEntropy, EvaluationLeavesTheLogits) {
  for_each_device([](Device device) {
    TestContext test(device);
    const Tensor scale = to_device(random_tensor({1}, DType::kF32, 1), device);
    Context evaluation{.stream = test.context.stream,
                       .memory = test.context.memory,
                       .loss_gradient = scale.data<float>()};
    const Tensor logits = to_device(random_tensor({3, 40}, DType::kF32, 2), device);
    const std::vector<double> before = values_of(logits);
    cross_entropy(evaluation, Variable::leaf(logits),
                  to_device(int_tensor({3}, std::vector<int32_t>{1, 2, 3}), device));
    EXPECT_EQ(values_of(logits), before);
  });
}

// Rows of odd widths may be summed in another order. Tolerance: 4 (65 + 16) roundings of f32 of
// numbers below 8.
TEST(CrossEntropy, RowsMayBeStoredAtOddWidths) {
  for_each_device([](Device device) {
    const Results padded = results_of(device, DType::kF32, 65, 67);
    const Results dense = results_of(device, DType::kF32, 65, 65);
    EXPECT_EQ(padded.correct, dense.correct);
    for (size_t i = 0; i < dense.losses.size(); ++i) {
      EXPECT_NEAR(padded.losses[i], dense.losses[i], 4 * 81 * 8 * 0x1p-24) << i;
    }
    for (size_t i = 0; i < dense.gradient.size(); ++i) {
      EXPECT_NEAR(padded.gradient[i], dense.gradient[i], 4 * 81 * 8 * 0x1p-24) << i;
    }
  });
}

TEST(CrossEntropy, MoreClassesThanColumns) {
  TestContext test;
  const Variable logits(random_tensor({2, 5}, DType::kF32, 2));
  const Tensor targets = int_tensor({2}, std::vector<int32_t>{0, 1});
  EXPECT_THROW(cross_entropy(test.context, logits, targets, 6), Error);
}

TEST(CrossEntropy, TargetOutsideTheClasses) {
  TestContext test;
  const Variable logits(random_tensor({2, 5}, DType::kF32, 2));
  for (int32_t bad : {5, -2}) {
    try {
      cross_entropy(test.context, logits, int_tensor({2}, std::vector<int32_t>{0, bad}));
      FAIL() << "no error for " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_NE(std::string(error.what()).find("row 1"), std::string::npos) << error.what();
    }
  }
}

TEST(CrossEntropy, CountCorrect) {
  Tensor logits = Tensor::zeros(test_memory(), {6, 3}, DType::kF32, MemoryClass::kData);
  logits.data<float>()[0 * 3 + 2] = 1;   // largest: 2
  logits.data<float>()[1 * 3 + 0] = -1;  // tie of 1 and 2: 1 wins
  logits.data<float>()[2 * 3 + 0] = -1;
  logits.data<float>()[3 * 3 + 1] = 1;      // ignored
  logits.data<float>()[5 * 3 + 0] = -0.0f;  // rows 4 and 5: tie of all, 0 wins
  const Tensor targets = int_tensor({6}, std::vector<int32_t>{2, 1, 2, kIgnoreTarget, 0, 0});
  for_each_device([&](Device device) {
    TestContext test(device);
    for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      const Tensor correct = count_correct(
          test.context, to_device(rounded_to(logits, dtype), device), to_device(targets, device));
      ASSERT_EQ(correct.shape(), (Shape{1}));
      EXPECT_EQ(to_host(correct).data<int64_t>()[0], 4);
    }
  });
}

// Negative and positive logits, inside packs and in the elements before and after them.
TEST(CrossEntropy, CountCorrectOfLongRows) {
  for (const double shift : {-10.0, 0.0, 10.0}) {
    Tensor logits = random_tensor({7, 1001}, DType::kF32, 3);
    std::vector<int32_t> targets;
    for (int64_t n = 0; n < 7; ++n) {
      float* row = logits.data<float>() + n * 1001;
      std::for_each(row, row + 1001, [&](float& x) { x += static_cast<float>(shift); });
      targets.push_back(static_cast<int32_t>(std::max_element(row, row + 1001) - row) - (n == 4));
    }
    for_each_device([&](Device device) {
      TestContext test(device);
      const Tensor correct = count_correct(test.context, to_device(logits, device),
                                           to_device(int_tensor({7}, targets), device));
      EXPECT_EQ(to_host(correct).data<int64_t>()[0], 6);
    });
  }
}

}  // namespace
}  // namespace tandem::testing
