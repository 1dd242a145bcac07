#include <algorithm>
#include <array>

#include "layers/add/add.h"
#include "layers/conv2d/conv2d.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

TEST(Conv2d, GradientsMatchFiniteDifferences) {
  for (int64_t stride : {1, 2}) {
    Parameter weight{.name = "w", .shape = {5, 3, 3, 4}};
    check_gradients({Shape{2, 5, 6, 4}}, {&weight},
                    [&](Context& context, const std::vector<Variable>& in) {
                      return conv2d(context, in[0], weight, stride, 1);
                    });
  }
}

// A weight that is used twice: its second gradient is added to the first.
TEST(Conv2d, SharedWeightAccumulates) {
  Parameter weight{.name = "w", .shape = {4, 3, 3, 4}};
  check_gradients({Shape{2, 4, 4, 4}}, {&weight},
                  [&](Context& context, const std::vector<Variable>& in) {
                    return conv2d(context, conv2d(context, in[0], weight, 1, 1), weight, 1, 1);
                  });
}

// --- every device and precision ---

void check_conv2d_on_devices(const Shape& x, const Shape& w, int64_t stride, int64_t padding) {
  SCOPED_TRACE(str(x, " * ", w, " stride ", stride, " padding ", padding));
  Parameter weight{.name = "w", .shape = w};
  // Sums over taps, over taps of dx, over pixels.
  const int64_t terms = std::max(
      {w[1] * w[2] * std::max(w[0], w[3]), x[0] * (x[1] + 2 * padding) * (x[2] + 2 * padding)});
  check_devices({x}, {&weight},
                [&](Context& context, const std::vector<Variable>& in) {
                  return conv2d(context, in[0], weight, stride, padding);
                },
                {.terms = terms, .roundings = 1});
}

// Images of odd sizes, and channels that do or do not fill 16-byte packs and tiles of channels.
TEST(Conv2dDevices, KernelsStridesPaddingsAndChannels) {
  struct Channels {
    int64_t in, out;
  };
  constexpr std::array kChannels{Channels{1, 3},  Channels{3, 17}, Channels{16, 8}, Channels{5, 33},
                                 Channels{8, 65}, Channels{8, 72}, Channels{33, 5}};
  size_t next = 0;
  for (int64_t kernel : {1, 3, 5}) {
    for (int64_t stride : {1, 2, 3}) {
      for (int64_t padding : {0, 1, 2}) {
        for (int repeat = 0; repeat < 2; ++repeat) {
          const Channels c = kChannels[next++ % kChannels.size()];
          check_conv2d_on_devices({2, 5, 7, c.in}, {c.out, kernel, kernel, c.in}, stride, padding);
        }
      }
    }
  }
}

// Several tiles of pixels, taps and channels, and several shares of the weight gradient.
TEST(Conv2dDevices, ManyTiles) {
  check_conv2d_on_devices({3, 9, 11, 72}, {72, 3, 3, 72}, 1, 1);
  check_conv2d_on_devices({3, 9, 11, 65}, {67, 1, 1, 65}, 1, 0);
  check_conv2d_on_devices({5, 17, 15, 3}, {16, 5, 5, 3}, 2, 2);
  check_conv2d_on_devices({3, 9, 11, 48}, {32, 3, 3, 48}, 1, 1);
}

TEST(Conv2dDevices, KernelThatIsNotSquareAndImageSmallerThanIt) {
  check_conv2d_on_devices({2, 6, 11, 4}, {6, 2, 5, 4}, 2, 2);
  check_conv2d_on_devices({2, 1, 1, 5}, {7, 3, 3, 5}, 3, 1);
  check_conv2d_on_devices({1, 2, 3, 8}, {8, 7, 7, 8}, 2, 3);
  check_conv2d_on_devices({1, 16, 16, 1}, {2, 16, 16, 1}, 1, 0);
}

// The second gradients of the weight and of the input are added to the first.
TEST(Conv2dDevices, GradientsAccumulate) {
  for (int64_t channels : {5, 8}) {
    Parameter weight{.name = "w", .shape = {channels, 3, 3, channels}};
    check_devices({Shape{2, 4, 5, channels}}, {&weight},
                  [&](Context& context, const std::vector<Variable>& in) {
                    return add(context, conv2d(context, in[0], weight, 1, 1),
                               conv2d(context, in[0], weight, 1, 1));
                  },
                  {.terms = 9 * 8, .roundings = 4});
  }
}

TEST(Conv2dDevices, EmptyBatch) { check_conv2d_on_devices({0, 5, 5, 4}, {4, 3, 3, 4}, 1, 1); }

struct Results {
  std::vector<double> y, dx, dw;
  bool operator==(const Results&) const = default;
};

// x begins `offset` elements after an aligned address.
Results run_on(Device device, DType dtype, int64_t offset) {
  const Shape shape{3, 7, 9, 16};
  const Tensor values = rounded_to(random_tensor({3 * 7 * 9 * 16 + 8}, DType::kF32, 1), dtype);
  Tensor moved = Tensor::empty(test_memory(), values.shape(), dtype, MemoryClass::kData);
  const int64_t count = 3 * 7 * 9 * 16, bytes = size_of(dtype);
  std::copy_n(values.raw(), count * bytes, moved.raw() + offset * bytes);
  const Variable x = Variable::leaf(to_device(moved, device).slice(offset, count).reshape(shape));
  Parameter weight{.name = "w", .shape = {16, 3, 3, 16}, .id = 0};
  weight.value = to_device(rounded_to(random_tensor(weight.shape, DType::kF32, 2), dtype), device);
  weight.grad =
      Tensor::empty(test_memory(device), weight.shape, wide_of(dtype), MemoryClass::kGradients);
  TestContext test(device);
  const Variable y = conv2d(test.context, x, weight, 2, 1);
  const Tensor dy = rounded_to(random_tensor(y.shape(), DType::kF32, 3), dtype);
  Results results{.y = values_of(y.value()), .dx = {}, .dw = {}};
  test.tape.backward(test.context, y, to_device(dy, device));
  results.dx = values_of(x.slot()->grad);
  results.dw = values_of(weight.grad);
  return results;
}

// On a GPU, memory that is not aligned to 16 bytes is read element by element, in the same order.
TEST(Conv2dDevices, SameBitsEveryTimeAndForEveryAlignment) {
  for_each_device([](Device device) {
    for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      const Results once = run_on(device, dtype, 0);
      EXPECT_TRUE(once == run_on(device, dtype, 0)) << name_of(dtype);
      EXPECT_TRUE(once == run_on(device, dtype, 1)) << name_of(dtype);
    }
  });
}

TEST(Conv2d, ErrorsNameWhatDoesNotFit) {
  Parameter weight{.name = "stem.weight", .shape = {4, 5, 5, 3}};
  bind_parameters(std::vector<Parameter*>{&weight}, DType::kF32);
  TestContext test;
  const auto message = [&](Shape shape) {
    return message_of([&] {
      conv2d(test.context, Variable(random_tensor(shape, DType::kF32, 1)), weight, 1, 0);
    });
  };
  EXPECT_NE(message({1, 8, 8, 4}).find("stem.weight"), std::string::npos);
  EXPECT_NE(message({1, 4, 8, 3}).find("does not fit"), std::string::npos);
}

}  // namespace
}  // namespace tandem::testing
