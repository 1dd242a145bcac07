// Classes that are cut over the ranks of a job, of 1 to 4 ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "layers/cross_entropy/cut_cross_entropy.h"
#include "src/core/slice.h"
#include "tests/support/device_ranks.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

class CutCrossEntropy : public ::testing::Test {
 protected:
  struct Joined {
    std::vector<double> losses{}, gradient{};  // [rows], [rows, classes]
    double correct = 0;
  };

  // logits: f32 [rows, classes] on the host. Each rank has its slice of them, with `padding` more
  // columns. The gradient of each loss is 0.25, known before the losses or not.
  Joined run(const Tensor& logits, const std::vector<int32_t>& targets, DType dtype,
             int64_t padding, bool is_known, Device device) {
    const int64_t rows = logits.shape()[0], classes = logits.shape()[1];
    const ClassesHere here{Cut{world.rank(), world.size()}.of(classes), classes};
    const int64_t count = here.here.count(), width = count + padding;
    Tensor slice = random_tensor({rows, width}, DType::kF32, 9, 100);  // padding may hold anything
    for (int64_t n = 0; n < rows; ++n) {
      std::copy_n(logits.data<float>() + n * classes + here.here.begin, count,
                  slice.data<float>() + n * width);
    }
    TestContext test(device);
    test.context.tensor = &collectives_.of(device);
    const Tensor ids = to_device(int_tensor({rows}, targets), device);
    const Variable x = Variable::leaf(to_device(rounded_to(slice, dtype), device));
    Joined result;
    test.context.training = false;
    const Tensor correct = cut_cross_entropy(test.context, Variable(x.value()), ids, here).correct;
    result.correct = static_cast<double>(to_host(correct).data<int64_t>()[0]);
    test.context.training = true;
    const float known = 0.25F;
    const Tensor gradient = to_device(Tensor::of(std::as_bytes(std::span(&known, 1)), test_memory(),
                                                 {1}, DType::kF32, MemoryClass::kData),
                                      device);
    test.context.loss_gradient = is_known ? gradient.data<float>() : nullptr;
    const Variable losses = cut_cross_entropy(test.context, x, ids, here).losses;
    if (is_known) {
      test.tape.backward(test.context);
    } else {
      test.tape.backward(test.context, losses, 0.25);
    }
    const std::vector<double> dx = values_of(x.slot()->grad);
    result.gradient.resize(static_cast<size_t>(rows * classes));
    for (int64_t n = 0; n < rows; ++n) {
      const auto row = dx.begin() + n * width;
      std::copy_n(row, count, result.gradient.begin() + n * classes + here.here.begin);
      EXPECT_TRUE(std::all_of(row + count, row + width, [](double value) { return value == 0; }));
    }
    result.losses = world.control.sum(values_of(losses.value()));
    result.gradient = world.control.sum(result.gradient);
    result.correct = world.control.sum(std::vector{result.correct})[0];
    return result;
  }

  const Ranks world = test_ranks();
  DeviceRanks collectives_;
};

// The whole layer computes the same sums in another order. With logits of order one, sums of
// `classes` exponentials differ relatively by up to classes * 2^-24, the results by as much, and
// gradients of 16 bits by one rounding more.
TEST_F(CutCrossEntropy, SlicesGiveWhatTheWholeGives) {
  for (const int64_t classes : {5, 65, 2103, 40007}) {
    const int64_t rows = 6;
    const Tensor logits = random_tensor({rows, classes}, DType::kF32, 4);
    std::vector<int32_t> targets;
    for (int64_t n = 0; n < rows; ++n) {
      targets.push_back(n == 2 ? kIgnoreTarget
                               : static_cast<int32_t>(n * (classes - 1) / (rows - 1)));
    }
    logits.data<float>()[4 * classes + targets[4]] = 9;  // the largest of its row
    for_each_device([&](Device device) {
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
        TestContext test(device);
        const Tensor ids = to_device(int_tensor({rows}, targets), device);
        const Variable x = Variable::leaf(to_device(rounded_to(logits, dtype), device));
        const int64_t correct =
            to_host(count_correct(test.context, x.value(), ids)).data<int64_t>()[0];
        EXPECT_GE(correct, 1);
        const Variable whole = cross_entropy(test.context, x, ids);
        const std::vector<double> losses = values_of(whole.value());
        test.tape.backward(test.context, whole, 0.25);
        const std::vector<double> gradient = values_of(x.slot()->grad);
        for (const bool is_known : {false, true}) {
          SCOPED_TRACE(str(classes, " classes, ", name_of(dtype)));
          const Joined cut = run(logits, targets, dtype, is_known ? 0 : 3, is_known, device);
          const double bound = static_cast<double>(classes) * 0x1p-24;
          const double rounding = dtype == DType::kF32    ? 0
                                  : dtype == DType::kBf16 ? 0x1p-8
                                                          : 0x1p-10;
          for (size_t n = 0; n < losses.size(); ++n) {
            EXPECT_NEAR(cut.losses[n], losses[n], bound * (1 + losses[n])) << n;
          }
          for (size_t i = 0; i < gradient.size(); ++i) {
            ASSERT_NEAR(cut.gradient[i], gradient[i],
                        (bound + rounding) * std::fabs(gradient[i]) + 0x1p-24)
                << i;
          }
          EXPECT_EQ(cut.correct, correct);
        }
      }
    });
  }
}

// The lowest class wins among equal logits, whichever rank has it.
TEST_F(CutCrossEntropy, TiesBelongToTheLowestClass) {
  const std::vector<float> rows[] = {{1, 0, 1, 0}, {0, 1, 0, 1}, {0, 0, 2, 2}, {3, 3, 3, 3}};
  const Tensor logits = Tensor::zeros(test_memory(), {8, 4}, DType::kF32, MemoryClass::kData);
  for (int64_t n = 0; n < 8; ++n) {
    std::ranges::copy(rows[n / 2], logits.data<float>() + 4 * n);
  }
  const std::vector<int32_t> targets = {0, 2, 1, 3, 2, 3, 0, 2};  // lowest, then another
  for_each_device([&](Device device) {
    EXPECT_EQ(run(logits, targets, DType::kF32, 0, false, device).correct, 4);
  });
}

// A rank whose logits are all -infinity adds nothing.
TEST_F(CutCrossEntropy, InfiniteLogitsOfARankAddNothing) {
  const Tensor logits = random_tensor({1, 8}, DType::kF32, 5);
  std::fill_n(logits.data<float>() + 4, 4, -INFINITY);
  double sum = 0;
  for (int64_t j = 0; j < 4; ++j) {
    sum += std::exp(static_cast<double>(logits.data<float>()[j]));
  }
  for_each_device([&](Device device) {
    const Joined cut = run(logits, {0}, DType::kF32, 0, false, device);
    EXPECT_NEAR(cut.losses[0], std::log(sum) - logits.data<float>()[0], 1e-6);
    for (size_t j = 0; j < 8; ++j) {
      const double p = std::exp(static_cast<double>(logits.data<float>()[j])) / sum;
      EXPECT_NEAR(cut.gradient[j], 0.25 * (p - (j == 0)), 1e-6);
    }
  });
}

TEST_F(CutCrossEntropy, TargetsOutsideTheClassesAreAnError) {
  const Tensor logits = random_tensor({2, 8}, DType::kF32, 5);
  EXPECT_EQ(message_of([&] {
              run(logits, {0, 8}, DType::kF32, 0, false, Device::kCpu);
            }).find("target 8 of row 1 is outside the 8 classes"),
            0U);
}

}  // namespace
}  // namespace tandem::testing
