// A rank that stays away while the others validate, show views or save, over NCCL on the emulated
// GPU, on 2 to 4 ranks (tests/support/mpi_main.cpp): the others end by dist.timeout_s.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport/patience.h"
#include "src/inference/evaluation.h"
#include "src/machine/machine.h"
#include "src/train/model_views.h"
#include "src/weights/make_model.h"
#include "src/weights/snapshot.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"
#include "tests/support/set_config.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kTimeout_s = 0.5;

bool is_last() { return test_world().rank() == test_world().size() - 1; }

// Windows of zeros, two for each of 4 ranks, which the last rank cannot read.
class Windows final : public Dataset {
 public:
  Windows() : Dataset(DatasetInfo()) { info_.vocab_size = 7; }
  int64_t windows(Split, int64_t) const override { return 8; }
  MicroBatch training_batch(const TrainingOptions&, int64_t, int64_t) const override {
    fail(ExitCode::kInternal, "no test trains on it");
  }
  MicroBatch validation_batch(int64_t context, int64_t, int64_t count) const override {
    require(!is_last(), "planted");
    const auto tokens = static_cast<size_t>(context * count);
    return {.samples = count,
            .tokens = std::vector<int32_t>(tokens),
            .targets = std::vector<int32_t>(tokens),
            .target_count = context * count};
  }
};

class LostPeer : public ::testing::Test {
 protected:
  LostPeer() {
    config_.run.device = Device::kCuda;
    config_.dist.backend = Backend::kNccl;
    config_.dist.zero = 3;
    config_.dist.bucket_mb = 0.001;
    for (const auto& [key, value] : {std::pair("kind", "gpt"), {"layers", "1"}, {"width", "16"}}) {
      set(config_, str("model.", key), value);
    }
    config_.train.global_batch = int64_t{12};
    config_.log.histograms = true;
    config_.log.sample_every = 0;
    machine_ = std::make_unique<Machine>(config_.run, config_.dist, test_world());
    model_ = make_model(config_.model, data_.info());
    training_ = std::make_unique<TrainingStep>(
        *model_, machine_->mesh()->model(), machine_->stream, machine_->memory, machine_->staging,
        config_.training_step(Device::kCuda, machine_->mesh()->job().size()));
    training_->store().values.initialize(1);
    training_->store().values.gather();
    machine_->stream.synchronize();
  }

  // Runs `work`, of which the last rank does no more than begin. The others must not wait for it.
  template <class F>
  void expect_end(F work) {
    if (test_world().size() == 1) {
      GTEST_SKIP() << "nobody to wait for";
    }
    test_world().set_timeout_s(kTimeout_s);
    const Patience time;
    try {
      work();
      ADD_FAILURE() << "ended without an error";
    } catch (const Error& error) {
      EXPECT_THAT(std::string(error.what()),
                  HasSubstr(is_last() ? "planted"
                                      : str("rank ", test_world().rank(), " of ",
                                            test_world().size(), "): nothing moved for 0.5 s")));
      EXPECT_EQ(error.code(), is_last() ? ExitCode::kInternal : ExitCode::kTemporary);
    }
    EXPECT_LT(time.waited_s(), 10);
    test_world().set_timeout_s(30);
    test_world().control().barrier();
  }

  // From here on the compute stream waits for a collective that the last rank does not start.
  void wait_for_the_last_rank() {
    require(!is_last(), "planted");
    const Group& ranks = machine_->mesh()->data();
    own_ = Tensor::zeros(machine_->memory, {4}, DType::kF32, MemoryClass::kWorkspace);
    all_ =
        Tensor::zeros(machine_->memory, {4 * ranks.size()}, DType::kF32, MemoryClass::kWorkspace);
    ranks.all_gather(own_, all_);
    machine_->stream.wait(ranks.stream().record());
  }

  Windows data_;
  Config config_;
  std::unique_ptr<Machine> machine_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<TrainingStep> training_;
  Tensor own_, all_;
};

TEST_F(LostPeer, EndsAValidation) {
  Uploader upload(machine_->stream, machine_->memory, machine_->staging, data_.info(), DType::kF32);
  const Context context{.stream = machine_->stream,
                        .memory = machine_->memory,
                        .gate = &training_->store().gradients};
  expect_end([&] {
    evaluate(*model_, context, data_, config_.model->context(), 1, 0, upload,
             machine_->mesh()->model());
  });
}

TEST_F(LostPeer, EndsViews) {
  Uploader upload(machine_->stream, machine_->memory, machine_->staging, data_.info(), DType::kF32);
  ModelViews views(config_, data_, *model_, *training_, *machine_, upload);
  expect_end([&] {
    wait_for_the_last_rank();
    views.show(1, 1, nullptr);
  });
}

TEST_F(LostPeer, EndsASave) {
  Snapshot snapshot(machine_->stream, true);
  expect_end([&] {
    wait_for_the_last_rank();
    snapshot.take(training_->store(), training_->optimizer(), *model_, test_world().rank());
  });
}

}  // namespace
}  // namespace tandem::testing
