// A run's folder, and figures of two ranks, for tests of what a run reports.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/io/file.h"
#include "src/report/run_log.h"
#include "src/report/run_report.h"
#include "tests/support/set_config.h"
#include "tests/support/temporary_folder.h"

namespace tandem {

namespace fs = std::filesystem;

inline int64_t& peak_of(RankUse& use, MemoryClass memory_class) {
  return use.memory_peak[static_cast<size_t>(memory_class)];
}

inline WireCount::Bytes& sent_by(RankUse& use, Traffic traffic) {
  return use.wire.by[static_cast<size_t>(traffic)];
}

// Two ranks: rank 0 has the most memory, rank 1 sends the most.
inline std::vector<RankUse> two_ranks() {
  std::vector<RankUse> ranks(2);
  for (RankUse& use : ranks) {
    peak_of(use, MemoryClass::kParameters) = 3 << 20;
    peak_of(use, MemoryClass::kMasters) = 1 << 20;
    use.reserved_bytes = 6 << 20;
    sent_by(use, Traffic::kControl) = {.inside = 100, .between = 0};
    use.wire.collectives = 40;
  }
  ranks[0].peak_bytes = 5 << 20;
  ranks[1].peak_bytes = 4 << 20;
  sent_by(ranks[0], Traffic::kAllReduce) = {.inside = 1 << 20, .between = 0};
  sent_by(ranks[1], Traffic::kAllReduce) = {.inside = 1 << 20, .between = 2 << 20};
  return ranks;
}

class RunFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.run.dir = root_;
    config_.run.name = "a";
    set(config_, "model.kind", "mlp");
    config_.train.steps = 20;
    config_.log.progress = ProgressMode::kNone;
    config_.log.tensorboard = false;
    make_directories(directory().path());
  }
  RunDirectory directory() const { return RunDirectory(config_.run); }
  void put(const std::string& path, const std::string& text) {
    FileWriter(path, FileWriter::Start::kEmpty).write(text);
  }
  RunReport report() const {
    return RunReport::from_json(read_file(directory().report()), directory().report());
  }
  // A start from `step`, as the loop makes it. The step was validated before it was saved.
  std::unique_ptr<RunLog> start(int64_t step, int64_t skipped_batches = 0) {
    auto log =
        std::make_unique<RunLog>(config_, directory(), RunState{.step = step, .val_loss = 2.5},
                                 DatasetInfo{}, std::vector<std::string>{"a", "b", "a"});
    ::testing::internal::CaptureStdout();
    RunSummary summary;
    summary.batch = {.global_batch = 12, .given_micro_batch = 0, .ranks = 3};
    summary.machine = "1 thread";
    summary.samples_per_epoch = 48;
    summary.skipped_batches = skipped_batches;
    log->start(summary, "", {}, "");
    ::testing::internal::GetCapturedStdout();
    return log;
  }
  // What a run prints at its end.
  std::string finish(int64_t first_step, int64_t step) {
    RunLog log(config_, directory(), RunState{.step = first_step}, DatasetInfo{}, {"host"});
    ::testing::internal::CaptureStdout();
    log.finish(false, "runs/a/checkpoints/step-00000020", {.step = step, .ranks = two_ranks()});
    return ::testing::internal::GetCapturedStdout();
  }

  const testing::TemporaryFolder folder_;
  const std::string& root_ = folder_.path();
  Config config_;
};

}  // namespace tandem
