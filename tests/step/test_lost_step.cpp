// A step whose gradient is not finite: it halts training on the device, and when it is run once
// more it names the place. Runs on every device, over 1 to 4 ranks (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>

#include <limits>

#include "layers/models/mlp.h"
#include "src/device/copy.h"
#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"
#include "tests/support/small_transformer.h"

namespace tandem::testing {
namespace {

constexpr double kInfiniteGradient = 1e-39;  // as targets: 1 / targets is infinite in f32
constexpr const char* kAgain = "; again when the step was run once more, so data or numerics";
constexpr const char* kSuspect =
    "not when the step was run once more, so the hardware is suspect: ";

int size() { return test_world().size(); }
bool is_last() { return test_world().rank() == size() - 1; }

std::string all_ranks() {
  return size() == 1   ? "rank 0"
         : size() == 2 ? "rank 0 (and 1 other)"
                       : str("rank 0 (and ", size() - 1, " others)");
}

// Runs body(plan) for each device and stage, with several micro-batches.
void for_each_plan(Plan plan, const std::function<void(const Plan&)>& body) {
  plan.halts = true;
  plan.micro_batch = small_micro_batch();
  for_each_device([&](Device device) {
    plan.device = device;
    const int stages = size() == 1 ? 1 : 4;            // 1 rank shards nothing
    const int step = device == Device::kCuda ? 3 : 1;  // slow if it is emulated
    for (plan.zero = 0; plan.zero < stages; plan.zero += step) {
      SCOPED_TRACE(plan.zero);
      body(plan);
    }
  });
}

void make_infinite(Stream& stream, const Tensor& tensor, int64_t at) {
  const Tensor infinite =
      random_tensor({1}, DType::kF32, 1, std::numeric_limits<double>::infinity());
  const Tensor flat = tensor.reshape({tensor.elements()});
  copy(stream, rounded_to(infinite, tensor.dtype()), flat.slice(at, 1));
}

// From now on the last micro-batch of the last rank has an infinite number, `times` times.
void spoil_input(Job& job, int times) {
  job.change = [&job, times](int64_t micro_step, const DeviceBatch& batch) mutable {
    if (is_last() && micro_step + 1 == job.micro_batches() && times-- > 0) {
      make_infinite(job.stream(), batch.input, 0);
    }
  };
}

struct NoStore final : Gate {
  void acquire(Context&, BlockId, Pass) override {}
  void release(Context&, BlockId, Pass) override {}
};

// Large tensors are looked at piece by piece.
TEST(FiniteCheckTest, SeesTheFirstAndTheLastElementOfALargeTensor) {
  constexpr int64_t kElements = (1 << 20) + 1;
  for_each_device([&](Device device) {
    OneRank self;
    const Mesh mesh(self.control, self.collectives, test_memory(device), {0});
    const Mlp model({.image_height = 1, .image_width = 1, .channels = 1, .width = 1, .classes = 2});
    NoStore store;
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      for (const int64_t at : {int64_t{-1}, int64_t{0}, kElements - 1}) {
        Memory& memory = test_memory(device);
        const Tensor tensor = Tensor::zeros(memory, {kElements}, dtype, MemoryClass::kGradients);
        if (at >= 0) {
          make_infinite(test_stream(device), tensor, at);
        }
        FiniteCheck check(model, store, mesh.data(), test_stream(device), memory);
        check.begin_micro_step(0);
        check.see_output(0, {Variable(tensor)});
        check.see_gradient(
            {.name = "a", .shape = {kElements}, .grad = tensor, .grad_written = true});
        EXPECT_EQ(
            check.place() ? check.place()->text() : "",
            at < 0 ? ""
                   : "micro-batch 0, first in the output of block head, then in the gradient of a")
            << name_of(dtype) << " " << at;
      }
    }
  });
}

// What the head gives to a tied embedding, before the embedding adds to it.
TEST(FiniteCheckTest, SeesWhatEachBlockGivesToASharedParameter) {
  OneRank self;
  const Mesh mesh(self.control, self.collectives, test_memory(), {0});
  Transformer model(small(false));
  Parameter& shared = *parameters_of(model).front();
  shared.grad = Tensor::zeros(test_memory(), {8}, DType::kF32, MemoryClass::kGradients);
  shared.grad_written = true;
  make_infinite(test_stream(), shared.grad, 5);
  NoStore store;
  FiniteCheck check(model, store, mesh.data(), test_stream(), test_memory());
  check.begin_micro_step(0);
  TestContext test;
  check.release(test.context, 3, Pass::kForward);
  EXPECT_FALSE(check.place());
  check.release(test.context, 3, Pass::kBackward);
  ASSERT_TRUE(check.place());
  EXPECT_EQ(check.place()->parameter, "wte");
}

struct Halted {
  StepRecord::Copy record{};  // of the lost step
  std::vector<double> weights, statistics;
};

// A good step, one that is lost, and one that is good but comes too late.
Halted halt(Job& job, const std::function<void()>& spoil, bool poison = false) {
  job.step(0);
  Halted halted{.weights = job.weights(), .statistics = job.statistics()};
  spoil();
  job.step(1, poison);
  halted.record = job.record();
  const auto change = std::exchange(job.change, [](int64_t, auto&) {});
  job.step(2);
  job.change = change;
  const StepRecord::Copy late = job.record();
  job.loss_of(late);
  EXPECT_TRUE(std::isfinite(late.step_state().squared_norm));
  EXPECT_EQ(late.step_state().apply, 0);
  EXPECT_EQ(late.step_state().updates, 1);
  return halted;
}

// Runs the lost step again, and checks that this and the halt have changed nothing.
LostStep again(Job& job, const Halted& halted, bool poison = false) {
  const LostStep lost = job.run_again(1, halted.record, poison);
  EXPECT_EQ(job.weights(), halted.weights);
  EXPECT_EQ(job.statistics(), halted.statistics);
  return lost;
}

struct Variant {
  const char* model;
  DType dtype = DType::kF32;
  bool exact = false, recompute = false;
  const char* frozen = "";
  const char *output, *parameter;  // where it begins
};

class LostInput : public ::testing::TestWithParam<Variant> {};

TEST_P(LostInput, NamesRankMicroBatchBlockAndParameter) {
  const Variant& variant = GetParam();
  const Plan plan{.model = variant.model,
                  .dtype = variant.dtype,
                  .exact = variant.exact,
                  .recompute = variant.recompute,
                  .frozen = variant.frozen};
  for_each_plan(plan, [&](const Plan& own) {
    Job job(own);
    const Halted halted = halt(job, [&] { spoil_input(job, 1 << 20); });
    const LostStep lost = again(job, halted);
    EXPECT_TRUE(lost.happens_again);
    EXPECT_EQ(lost.text, str("rank ", size() - 1, ", micro-batch ", job.micro_batches() - 1,
                             ", first in the output of block ", variant.output,
                             ", then in the gradient of ", variant.parameter, kAgain));
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, LostInput,
    ::testing::Values(
        Variant{.model = "mlp", .output = "layers.0", .parameter = "head.bias"},
        Variant{.model = "mlp", .exact = true, .output = "layers.0", .parameter = "head.bias"},
        Variant{
            .model = "mlp", .dtype = DType::kBf16, .output = "layers.0", .parameter = "head.bias"},
        Variant{
            .model = "mlp", .frozen = "head", .output = "layers.0", .parameter = "layers.0.bias"},
        Variant{.model = "resnet", .recompute = true, .output = "stem", .parameter = "head.bias"}),
    [](const auto& tested) {
      const Variant& v = tested.param;
      return str(v.model, name_of(v.dtype), v.exact ? "Exact" : "", v.recompute ? "Recompute" : "",
                 v.frozen);
    });

// The weights are then not finite on any rank.
TEST(LostStep, NamesTheFirstBlockThatAWeightSpoils) {
  for (const bool recompute : {false, true}) {
    for_each_plan({.model = "llama", .recompute = recompute}, [](const Plan& plan) {
      Job job(plan);
      job.spoil("blocks.1.mlp.down.weight");
      job.step(0);
      const StepRecord::Copy first = job.record();
      job.loss_of(first);
      const LostStep lost = job.run_again(0, first);
      EXPECT_TRUE(lost.happens_again);
      EXPECT_EQ(lost.text,
                str(all_ranks(), ", micro-batch 0, first in the output of block blocks.1",
                    ", then in the gradient of head.weight", kAgain));
    });
  }
}

// The gradient alone overflows, on the last rank.
TEST(LostStep, NamesTheParameterWhenTheForwardPassIsFinite) {
  for_each_plan({.model = "gpt"}, [](const Plan& plan) {
    Job job(plan);
    job.poisoned_targets = kInfiniteGradient;
    const Halted halted = halt(
        job, [] {}, is_last());
    const LostStep lost = again(job, halted, is_last());
    EXPECT_TRUE(lost.happens_again);
    EXPECT_EQ(lost.text, str("rank ", size() - 1,
                             ", micro-batch 0, first in the gradient of ln_f.bias", kAgain));
  });
}

TEST(LostStep, SuspectsTheHardwareIfItDoesNotHappenAgain) {
  for_each_plan({.model = "mlp"}, [](const Plan& plan) {
    Job job(plan);
    const Halted halted = halt(job, [&] { spoil_input(job, 1); });
    const LostStep lost = again(job, halted);
    EXPECT_FALSE(lost.happens_again);
    EXPECT_EQ(lost.text, str(kSuspect, "the loss of rank ", size() - 1, ", micro-batch ",
                             job.micro_batches() - 1, " was not finite"));
  });
}

TEST(LostStep, KnowsNoRankIfAllLossesWereFinite) {
  for_each_plan({.model = "mlp"}, [](const Plan& plan) {
    Job job(plan);
    job.poisoned_targets = kInfiniteGradient;
    const Halted halted = halt(
        job, [] {}, is_last());
    const LostStep lost = again(job, halted);
    EXPECT_FALSE(lost.happens_again);
    EXPECT_EQ(lost.text, str(kSuspect, "no rank is known, because all losses were finite"));
  });
}

// All ranks have the same samples, and their gradients grow until the sum is infinite: then each is
// still finite, because the sum is at least twice as large.
TEST(LostStep, SaysWhenOnlyTheSumOverflows) {
  if (size() == 1) {
    GTEST_SKIP() << "for several ranks";
  }
  Plan plan{.model = "mlp", .halts = true};
  for_each_device([&](Device device) {
    plan.device = device;
    for (const int zero : {0, 3}) {
      plan.zero = zero;
      Job job(plan);
      job.change = [&](int64_t, const DeviceBatch& batch) {
        tandem::zero(job.stream(), batch.input);
        tandem::zero(job.stream(), batch.targets);
      };
      StepRecord::Copy record;
      int64_t number = 0;
      for (job.poisoned_targets = 1e-36; number < 20; ++number, job.poisoned_targets /= 1.5) {
        job.step(number, true, 0);
        record = job.record();
        job.loss_of(record);
        if (record.step_state().halted != 0) {
          break;
        }
      }
      ASSERT_GT(number, 0);
      ASSERT_LT(number, 20);
      const LostStep lost = job.run_again(number, record, true);
      EXPECT_TRUE(lost.happens_again);
      EXPECT_EQ(lost.text,
                str("each gradient of each rank is finite, but their sum is not", kAgain));
    }
  });
}

}  // namespace
}  // namespace tandem::testing
