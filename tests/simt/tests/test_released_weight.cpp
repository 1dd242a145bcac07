// A planted fault in an op: backward reads a parameter at the address that it had in forward. Under
// ZeRO-3 that memory is freed and allocated again, which is why ops save a Parameter*. Needs
// TANDEM_MEMORY_CACHE=0.
#include "src/device/dispatch.h"
#include "src/kernels/launch.cuh"
#include "tests/simt/simt.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

constexpr int64_t kSize = 40;

__global__ void multiply_kernel(Global<const float> x, Global<const float> w, Global<float> y) {
  y.store(threadIdx.x, x.load(threadIdx.x) * w.load(threadIdx.x));
}

void multiply(const Stream& stream, const float* x, const float* w, float* y) {
  launch<multiply_kernel>(Cuda{stream.handle()}, 1, kSize, 0, x, w, y);
}

struct ScaleOp final : Op {
  const float* kept = nullptr;  // the fault: the weight's address in forward

  std::string_view name() const override { return "scale"; }
  void backward(Context& context, Tensor& dy) override {
    const float* weight = kept ? kept : parameter(0).value.data<float>();
    multiply(context.stream, dy.data<float>(), weight, input(0).target(context).into.data<float>());
  }
};

// y = w x. Before backward, the weight's memory is freed, and the weight is placed elsewhere.
Tensor gradient_through_released_weight(bool plant_fault) {
  TestContext test(Device::kCuda);
  const Tensor values = random_tensor({kSize}, DType::kF32, 1);
  Parameter weight{.name = "w", .shape = {kSize}, .id = 0};
  weight.value = to_device(values, Device::kCuda);
  const Variable x = Variable::leaf(to_device(values, Device::kCuda));
  auto op = std::make_unique<ScaleOp>();
  op->kept = plant_fault ? weight.value.data<float>() : nullptr;
  const Tensor result = test.context.activation({kSize}, DType::kF32);
  multiply(test.stream, x.data<float>(), weight.value.data<float>(), result.data<float>());
  const Variable y = test.context.record(result, std::move(op), {x}, {&weight});
  weight.value = {};
  weight.value = to_device(values, Device::kCuda);
  test.tape.backward(test.context, y, 1.0);
  return x.slot()->grad;
}

TEST(ReleasedWeight, IsReadWhereItLiesNow) {
  Tensor gradient;
  const std::string failure =
      simt::failure_of([&] { gradient = gradient_through_released_weight(false); });
  EXPECT_EQ(failure, "");
  EXPECT_EQ(values_of(gradient), values_of(random_tensor({kSize}, DType::kF32, 1)));
}

TEST(ReleasedWeight, IsNotReadWhereItLay) {
  const std::string failure = simt::failure_of([] { gradient_through_released_weight(true); });
  EXPECT_NE(failure.find("use after free load in kernel multiply_kernel"), std::string::npos)
      << failure;
}

}  // namespace
}  // namespace tandem::testing
