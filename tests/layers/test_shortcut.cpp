#include "layers/add/add.h"
#include "layers/shortcut/shortcut.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

TEST(Shortcut, SubsamplesAndFillsWithZeros) {
  TestContext test;
  const Variable x(random_tensor({2, 5, 4, 3}, DType::kF32, 1));
  const Variable y = shortcut(test.context, x, 2, 7);
  ASSERT_EQ(y.shape(), Shape({2, 3, 2, 7}));
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t w = 0; w < 2; ++w) {
        for (int64_t c = 0; c < 7; ++c) {
          const float expected =
              c < 3 ? x.data<float>()[((n * 5 + 2 * h) * 4 + 2 * w) * 3 + c] : 0.0f;
          EXPECT_EQ(y.data<float>()[((n * 3 + h) * 2 + w) * 7 + c], expected);
        }
      }
    }
  }
}

TEST(Shortcut, DevicesAgree) {
  for (const int64_t stride : {1, 2, 3}) {
    check_devices({Shape{2, 5, 4, 3}}, {}, [&](Context& context, const std::vector<Variable>& in) {
      return shortcut(context, in[0], stride, 7);
    });
  }
  // Whole 16-byte packs, and a row of pixels with more packs than a block has threads.
  check_devices({Shape{2, 3, 70, 32}}, {}, [](Context& context, const std::vector<Variable>& in) {
    return shortcut(context, in[0], 2, 40);
  });
}

TEST(Shortcut, DevicesAgreeWhenGradientsAdd) {
  for (const int64_t channels : {3, 16}) {
    check_devices({Shape{2, 3, 5, channels}}, {},
                  [](Context& context, const std::vector<Variable>& in) {
                    const int64_t wider = in[0].shape()[3] + 8;
                    return add(context, shortcut(context, in[0], 2, wider),
                               shortcut(context, in[0], 2, wider));
                  },
                  {.roundings = 8});
  }
}

TEST(Shortcut, GradientsMatchFiniteDifferences) {
  for (const int64_t stride : {1, 2, 3}) {
    check_gradients({Shape{2, 5, 4, 3}}, {},
                    [&](Context& context, const std::vector<Variable>& in) {
                      return shortcut(context, in[0], stride, 5);
                    });
  }
}

// Two uses of x: the second gradient adds to the first.
TEST(Shortcut, GradientAccumulates) {
  check_gradients({Shape{1, 4, 4, 2}}, {}, [&](Context& context, const std::vector<Variable>& in) {
    return shortcut(context, shortcut(context, in[0], 1, 2), 2, 4);
  });
}

}  // namespace
}  // namespace tandem::testing
