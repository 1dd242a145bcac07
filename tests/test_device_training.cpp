// Whole training steps on every device, in every precision, over 1 to 4 ranks (tests/mpi_main.cpp):
// models, parameter store, communicator, step control and optimizer together.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "comm/nccl_communicator.h"
#include "comm/param_store.h"
#include "layers/batchnorm2d.h"
#include "layers/cross_entropy.h"
#include "layers/mlp.h"
#include "layers/resnet.h"
#include "layers/transformer.h"
#include "optim/adamw.h"
#include "optim/step_record.h"
#include "src/autograd/tape.h"
#include "src/core/cuda.h"
#include "tests/harness.h"
#include "tests/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr int kGlobalBatch = 12;  // divisible by 1 to 4 ranks
constexpr int kSteps = 4;

struct Plan {
  std::string model = "gpt";
  Device device = Device::kCpu;
  DType dtype = DType::kF32;
  DType wire = DType::kF32;
  bool recompute = false;
  int64_t accumulation = 1;
  bool staged = false;  // GPU gradients through MPI
};

std::unique_ptr<Model> make(const Plan& plan) {
  if (plan.model == "resnet") {
    return make_resnet(
        {.depth = 8, .height = 6, .width = 6, .classes = 5, .recompute = plan.recompute});
  }
  if (plan.model == "mlp") {
    return std::make_unique<Mlp>(MlpConfig{.image_height = 6,
                                           .image_width = 6,
                                           .channels = 3,
                                           .layers = 1,
                                           .width = 12,
                                           .classes = 5,
                                           .recompute = plan.recompute});
  }
  const bool llama = plan.model == "llama";
  return std::make_unique<Transformer>(TransformerConfig{.llama = llama,
                                                         .vocab = 11,
                                                         .context = 5,
                                                         .layers = 2,
                                                         .heads = 2,
                                                         .kv_heads = llama ? 1 : 0,
                                                         .width = 16,
                                                         .ffn_width = 24,
                                                         .dropout = 0.1,
                                                         .tie_embeddings = !llama,
                                                         .recompute = plan.recompute});
}

struct Outcome {
  std::vector<double> losses;   // mean of the global batch, by step
  std::vector<double> weights;  // all masters
  int64_t skipped = 0;
};

std::unique_ptr<Communicator> nccl_for(const Plan& plan) {
  if constexpr (kHasCuda) {
    if (plan.device == Device::kCuda && !plan.staged) {
      cuda::use_device(test_world().local_rank() % cuda::device_count());
      return std::make_unique<NcclCommunicator>(test_world().communicator(),
                                                test_world().timeout_s());
    }
  }
  return nullptr;
}

class Job {
 public:
  explicit Job(const Plan& plan)
      : plan_(plan),
        nccl_(nccl_for(plan)),
        comm_(nccl_ ? *nccl_ : test_world().communicator()),
        stream_(test_stream(plan.device)),
        memory_(test_memory(plan.device)),
        model_(make(plan)),
        store_(model_->blocks(), comm_, memory_,
               {.bucket_bytes = 2000, .dtype = plan.dtype, .wire_dtype = plan.wire}),
        record_(stream_, memory_, test_memory(), plan.accumulation,
                {.clip_norm = 1, .dynamic_scale = plan.dtype == DType::kFp16}) {
    store_.initialize(stream_, 1);
    for (RunningStatistics* statistics : model_->statistics()) {
      statistics->sum =
          Tensor::zeros(memory_, {2, statistics->channels}, DType::kF32, MemoryClass::kOptimizer);
    }
    optimizer_ = make_adamw({}, store_.shards(), memory_);
  }

  // `poison`: this rank's gradients of that step overflow.
  void step(int64_t number, bool poison = false) {
    store_.begin_step();
    for (int64_t i = 0; i < plan_.accumulation; ++i) {
      const int64_t first = (comm_.rank() * plan_.accumulation + i) * micro_batch();
      Context context{
          .stream = stream_,
          .memory = memory_,
          .tape = &tape_,
          .random = {.seed = 1, .step = static_cast<uint64_t>(number), .first_sample = first},
          .training = true};
      store_.begin_backward(i + 1 == plan_.accumulation);
      const Variable losses =
          cross_entropy(context, model_->forward(context, store_, input(first)), targets(first));
      record_.add_up(stream_, i, losses.value());
      tape_.backward(context, losses, poison ? 1e38 : 1.0 / target_count(),
                     &record_.state()->loss_scale);
      store_.finish_backward(context);
    }
    record_.decide(stream_, store_.shards());
    optimizer_->step(stream_, store_.shards(), {.lr = 0.01, .state = record_.state()});
  }

  // Read one step late, as the trainer does.
  StepRecord::Copy record() { return record_.copy_to_host(stream_); }
  double loss_of(const StepRecord::Copy& copy) {
    comm_.wait(copy.done);
    double sum = 0;
    for (double loss : copy.losses.as<double>()) {
      sum += loss;
    }
    return comm_.sum(std::vector<double>{sum})[0] / target_count();
  }
  std::vector<double> weights() {
    std::vector<double> all;
    for (const Shard& shard : store_.shards()) {
      const std::vector<double> values = values_of(shard.value);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  bool text() const { return plan_.model == "gpt" || plan_.model == "llama"; }
  int64_t micro_batch() const { return kGlobalBatch / comm_.size() / plan_.accumulation; }
  double target_count() const { return kGlobalBatch * (text() ? 5.0 : 1.0); }

  Tensor input(int64_t first) const {
    const int64_t samples = micro_batch();
    if (!text()) {
      const Tensor all = random_tensor({kGlobalBatch * 108}, DType::kF64, 5);
      return to_device(rounded_to(all.slice(first * 108, samples * 108), plan_.dtype)
                           .reshape({samples, 6, 6, 3}),
                       plan_.device);
    }
    return to_device(numbers(first * 5, samples * 5, 11).reshape({samples, 5}), plan_.device);
  }
  Tensor targets(int64_t first) const {
    const int64_t each = text() ? 5 : 1;
    return to_device(numbers(first * each + 1, micro_batch() * each, text() ? 11 : 5),
                     plan_.device);
  }
  static Tensor numbers(int64_t first, int64_t count, int64_t limit) {
    std::vector<int32_t> values;
    for (int64_t i = first; i < first + count; ++i) {
      values.push_back(static_cast<int32_t>((i * i + 3 * i) % limit));
    }
    return int_tensor({count}, values);
  }

  Plan plan_;
  std::unique_ptr<Communicator> nccl_;  // null: the world's
  Communicator& comm_;
  Stream& stream_;
  Memory& memory_;
  std::unique_ptr<Model> model_;
  ParamStore store_;
  StepRecord record_;
  std::unique_ptr<Optimizer> optimizer_;
  Tape tape_{
      [this](Context& context, Parameter& parameter) { store_.on_final(context, parameter); }};
};

Outcome train(const Plan& plan) {
  Job run(plan);
  Outcome outcome;
  std::vector<StepRecord::Copy> copies;
  for (int step = 0; step < kSteps; ++step) {
    run.step(step);
    copies.push_back(run.record());
    if (step > 0) {
      outcome.losses.push_back(run.loss_of(copies[step - 1]));
    }
  }
  outcome.losses.push_back(run.loss_of(copies.back()));
  outcome.skipped = copies.back().step_state().skipped;
  outcome.weights = run.weights();
  record_bits(outcome.weights);
  return outcome;
}

// Every layer rounds its result: an error of u = 2^-8 (bf16) or 2^-11 (fp16) of each of some thirty
// values on the way to the loss, of either sign, is sqrt(30) * u of a logit of size one; four steps
// of training can double what the weights have drifted apart. Twice that is asked for.
double band(DType dtype) {
  return dtype == DType::kF32 ? 1e-4
                              : 4 * std::sqrt(30.0) * (dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11);
}

class DeviceTraining : public ::testing::TestWithParam<const char*> {};

// Every device and precision follows the curve of the CPU in f32.
TEST_P(DeviceTraining, FollowsTheCurve) {
  const Outcome expected = train({.model = GetParam()});
  for_each_device([&](Device device) {
    for (DType dtype : {DType::kF32, DType::kBf16, DType::kFp16}) {
      SCOPED_TRACE(name_of(dtype));
      const Outcome actual = train({.model = GetParam(), .device = device, .dtype = dtype});
      EXPECT_EQ(actual.skipped, 0);
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(actual.losses[step], expected.losses[step], band(dtype)) << "step " << step;
      }
    }
  });
}

TEST_P(DeviceTraining, RecomputationChangesNoBit) {
  for_each_device([&](Device device) {
    const DType dtype = device == Device::kCpu ? DType::kBf16 : DType::kF32;
    const Outcome kept = train({.model = GetParam(), .device = device, .dtype = dtype});
    const Outcome again =
        train({.model = GetParam(), .device = device, .dtype = dtype, .recompute = true});
    EXPECT_EQ(kept.losses, again.losses);
    EXPECT_EQ(kept.weights, again.weights);
  });
}

TEST_P(DeviceTraining, RunsTwiceWithTheSameBits) {
  for_each_device([&](Device device) {
    const Plan plan{.model = GetParam(), .device = device, .dtype = DType::kFp16};
    EXPECT_EQ(train(plan).weights, train(plan).weights);
  });
}

// Half of the gradient sums are in another order: f32 rounding, amplified by four steps of
// training.
TEST_P(DeviceTraining, AccumulationKeepsTheCurve) {
  if (std::string(GetParam()) == "resnet" || kGlobalBatch / test_world().size() % 2 != 0) {
    GTEST_SKIP() << "batch statistics belong to the micro-batch";
  }
  for_each_device([&](Device device) {
    const Outcome whole = train({.model = GetParam(), .device = device});
    const Outcome halves = train({.model = GetParam(), .device = device, .accumulation = 2});
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(whole.losses[step], halves.losses[step], 1e-5) << "step " << step;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceTraining,
                         ::testing::Values("gpt", "llama", "resnet", "mlp"));

// Gradients through MPI have the bits of a ring, those through NCCL may be added in another order.
TEST(DeviceTraining, StagedThroughTheHost) {
  for_each_device([&](Device device) {
    const Outcome direct = train({.device = device});
    const Outcome staged = train({.device = device, .staged = true});
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(direct.losses[step], staged.losses[step], 1e-5);
    }
  });
}

// Gradients that are rounded to bf16 once for each rank: the loss moves by far less than 2^-8.
TEST(DeviceTraining, Bf16OnTheWire) {
  for_each_device([&](Device device) {
    const Outcome f32 = train({.device = device});
    const Outcome bf16 = train({.device = device, .wire = DType::kBf16});
    EXPECT_EQ(test_world().size() > 1, f32.weights != bf16.weights);
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(f32.losses[step], bf16.losses[step], 0x1p-8);
    }
  });
}

// Overflows on one rank: all ranks skip the same steps and halve the scale; training goes on.
TEST(DeviceTraining, RecoversFromOverflow) {
  for_each_device([&](Device device) {
    Job run({.device = device, .dtype = DType::kFp16});
    const int last = test_world().size() - 1;
    std::vector<float> scales;
    std::vector<double> before, after;
    for (int step = 0; step < 6; ++step) {
      const bool poison = (step == 1 || step == 2) && test_world().rank() == last;
      if (step == 1) {
        before = run.weights();
      }
      run.step(step, poison);
      if (step == 2) {
        after = run.weights();
      }
      const StepRecord::Copy copy = run.record();
      run.loss_of(copy);
      scales.push_back(copy.step_state().loss_scale);
    }
    EXPECT_EQ(scales, (std::vector<float>{65536, 32768, 16384, 16384, 16384, 16384}));
    EXPECT_EQ(before, after) << "a skipped step changes nothing";
    EXPECT_NE(after, run.weights());
  });
}

}  // namespace
}  // namespace tandem::testing
