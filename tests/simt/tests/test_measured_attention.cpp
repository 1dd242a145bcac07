// Attention by Tandem's kernels or by cuDNN, as it is measured, against a cuDNN that takes its
// time, errs and fails.
#include "layers/attention/attention.h"
#include "src/product/measure.h"
#include "tests/simt/libraries/cudnn_attention.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

using Errs = simt::CudnnBehaviour::Errs;

struct Case {
  DType dtype;
  int64_t batch, length;
  HeadLayout layout;
};

class MeasuredAttention : public ::testing::Test {
 protected:
  static constexpr Case kOne{DType::kBf16, 2, 70, {.heads = 4, .kv_heads = 2, .width = 64}};
  std::vector<std::string> warnings;

  void SetUp() override { simt::cudnn() = {.is_there = true}; }
  void TearDown() override {
    use_choices(nullptr);
    simt::cudnn() = {};
  }

  // Attention forward and backward; returns y and the gradient of qkv.
  static std::vector<double> result(const Case& one) {
    const auto& [dtype, batch, length, layout] = one;
    TestContext test(Device::kCuda);
    const Shape shape = {batch, length, layout.row()};
    const Variable qkv = Variable::leaf(to_device(random_tensor(shape, dtype, 1), Device::kCuda));
    const Variable y = attention(test.context, qkv, layout);
    test.tape.backward(test.context, y,
                       to_device(random_tensor(y.shape(), dtype, 2), Device::kCuda));
    std::vector<double> all = values_of(y.value());
    std::ranges::copy(values_of(qkv.slot()->grad), std::back_inserter(all));
    return all;
  }

  // The choice of the only library that the case leaves open.
  LibraryChoice chosen(const Case& one) {
    const ChoiceRecorder recorder;
    result(one);
    EXPECT_EQ(recorder.noted().libraries.size(), 1u);
    const auto choices = std::make_shared<const KernelChoices>(
        measure(test_stream(Device::kCuda), recorder.noted(),
                [this](const std::string& line) { warnings.push_back(line); }));
    use_choices(choices);
    return choices->libraries.begin()->second;
  }
};

// The CPU's kernels, which stand in for cuDNN, add and round otherwise. So this also shows that
// right kernels agree on the numbers of the measurement.
TEST_F(MeasuredAttention, AFasterCudnnIsChosen) {
  const std::pair<int64_t, HeadLayout> sizes[] = {
      {1, {2, 2, 64}}, {2, {1, 1, 128}}, {65, {2, 1, 96}}, {70, {4, 1, 128}}, {192, {1, 1, 64}}};
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    for (const auto& [length, layout] : sizes) {
      SCOPED_TRACE(str(name_of(dtype), ", length ", length));
      TearDown();
      SetUp();
      const Case one{dtype, 2, length, layout};
      const std::vector<double> own = result(one);
      const LibraryChoice choice = chosen(one);
      EXPECT_EQ(warnings, std::vector<std::string>());
      EXPECT_TRUE(choice.by_library);
      EXPECT_LT(choice.other_seconds, choice.own_seconds);
      simt::cudnn().passes = 0;
      result(one);
      EXPECT_EQ(simt::cudnn().passes, 2);
      use_choices(nullptr);
      EXPECT_EQ(result(one), own);
      EXPECT_EQ(simt::cudnn().passes, 2);
    }
  }
}

TEST_F(MeasuredAttention, ASlowerCudnnIsNot) {
  simt::cudnn().seconds = 100;
  const LibraryChoice choice = chosen(kOne);
  EXPECT_EQ(warnings, std::vector<std::string>());
  EXPECT_FALSE(choice.by_library);
  EXPECT_LT(choice.own_seconds, choice.other_seconds);
  simt::cudnn().passes = 0;
  result(kOne);
  EXPECT_EQ(simt::cudnn().passes, 0);
}

TEST_F(MeasuredAttention, AWrongCudnnIsLeftOutAndNamed) {
  const auto fault = [&](const simt::CudnnBehaviour& behaviour) {
    TearDown();
    simt::cudnn() = behaviour;
    warnings.clear();
    const LibraryChoice choice = chosen(kOne);
    EXPECT_FALSE(choice.by_library);
    EXPECT_EQ(choice.other_seconds, 0);
    return warnings.size() == 1 ? warnings[0] : str(warnings.size(), " warnings");
  };
  const std::string end =
      ", and is left out, for attention of bf16 [2, 70, 512] with 4 heads, 2 key-value heads of "
      "width 64";
  for (const Errs errs : {Errs::kY, Errs::kLogSum, Errs::kGradient, Errs::kQueries, Errs::kKeys}) {
    EXPECT_EQ(fault({.is_there = true, .errs = errs}),
              "cuDNN gives another result than Tandem's kernels" + end);
  }
  EXPECT_EQ(fault({.is_there = true, .idles = true}),
            "cuDNN gives another result than Tandem's kernels" + end);
  EXPECT_EQ(fault({.is_there = true, .fails = true}),
            "cuDNN fails (cuDNN: CUDNN_STATUS_EXECUTION_FAILED)" + end);
}

TEST_F(MeasuredAttention, AMissingCudnnIsSaidOnceWhereItWasChosen) {
  const std::vector<double> own = result(kOne);
  EXPECT_TRUE(chosen(kOne).by_library);
  simt::cudnn().is_there = false;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(result(kOne), own);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(said, '\n'), 1);
  EXPECT_NE(said.find("Tandem's kernels take the place of the choice attention of bf16 [2, 70, "
                      "512] with 4 heads, 2 key-value heads of width 64, cuDNN 91900: the emulated "
                      "GPU has no cuDNN"),
            std::string::npos)
      << said;
}

// Other sizes than those of the kernels on tensor cores, and f32, leave no choice.
TEST_F(MeasuredAttention, WhatIsNotForTensorCoresLeavesNoChoice) {
  const ChoiceRecorder recorder;
  result({DType::kBf16, 1, 8, {.heads = 1, .kv_heads = 1, .width = 32}});
  result({DType::kF32, 1, 8, {.heads = 1, .kv_heads = 1, .width = 64}});
  EXPECT_TRUE(recorder.noted().libraries.empty());
}

}  // namespace
}  // namespace tandem::testing
