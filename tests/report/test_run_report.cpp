#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "src/core/error.h"
#include "src/io/file.h"
#include "src/report/run_log.h"
#include "src/report/run_report.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

int64_t& peak_of(RankUse& use, MemoryClass memory_class) {
  return use.memory_peak[static_cast<size_t>(memory_class)];
}

WireCount::Bytes& sent_by(RankUse& use, Traffic traffic) {
  return use.wire.by[static_cast<size_t>(traffic)];
}

// All numbers are different.
RankUse distinct_use() {
  RankUse use;
  int64_t next = int64_t{1} << 53;  // doubles cannot hold the odd ones
  for (WireCount::Bytes& bytes : use.wire.by) {
    bytes = {.inside = ++next, .between = ++next};
  }
  use.wire.collectives = ++next;
  for (int64_t& peak : use.memory_peak) {
    peak = ++next;
  }
  use.peak_bytes = ++next;
  use.saved_copy_bytes = ++next;
  return use;
}

// Two ranks: rank 0 has the most memory, rank 1 sends the most.
std::vector<RankUse> two_ranks() {
  std::vector<RankUse> ranks(2);
  for (RankUse& use : ranks) {
    peak_of(use, MemoryClass::kParameters) = 3 << 20;
    peak_of(use, MemoryClass::kMasters) = 1 << 20;
    sent_by(use, Traffic::kControl) = {.inside = 100, .between = 0};
    use.wire.collectives = 40;
  }
  ranks[0].peak_bytes = 5 << 20;
  ranks[1].peak_bytes = 4 << 20;
  sent_by(ranks[0], Traffic::kAllReduce) = {.inside = 1 << 20, .between = 0};
  sent_by(ranks[1], Traffic::kAllReduce) = {.inside = 1 << 20, .between = 2 << 20};
  return ranks;
}

TEST(RankUse, TextGivesTheSameNumbers) {
  const RankUse use = distinct_use();
  EXPECT_EQ(RankUse::from_text(use.text()), use);
  EXPECT_EQ(RankUse::from_text(RankUse{}.text()), RankUse{});
  const std::string text = use.text();
  EXPECT_THROW(RankUse::from_text(""), Error);
  EXPECT_THROW(RankUse::from_text(text + "1"), Error);
  EXPECT_THROW(RankUse::from_text(text.substr(0, text.rfind(' ', text.size() - 2))), Error);
}

TEST(RankUse, TheFirstOfTheLargest) {
  std::vector<RankUse> ranks = two_ranks();
  EXPECT_EQ(largest_rank(ranks), 0U);
  EXPECT_EQ(busiest_rank(ranks), 1U);
  ranks.push_back(ranks[1]);
  sent_by(ranks[2], Traffic::kControl).inside += 1 << 30;  // not payload
  EXPECT_EQ(busiest_rank(ranks), 1U);
}

TEST(RunReport, JsonGivesTheSameReport) {
  RunReport report{.first_step = 10,
                   .step = 20,
                   .read_ahead = 3,
                   .unused_parameters = 0,
                   .ranks = {distinct_use(), RankUse{}, two_ranks()[1]}};
  EXPECT_EQ(RunReport::from_json(report.json(), "report.json"), report);
  report.unused_parameters.reset();
  EXPECT_EQ(RunReport::from_json(report.json(), "report.json"), report);
}

TEST(RunReport, JsonNamesWhatOccurs) {
  const RunReport report{.first_step = 0,
                         .step = 20,
                         .read_ahead = 2,
                         .unused_parameters = 1,
                         .ranks = {two_ranks()[1]}};
  EXPECT_EQ(report.json(), R"({
  "first_step": 0,
  "step": 20,
  "read_ahead": 2,
  "unused_parameters": 1,
  "ranks": [
    {
      "peak_bytes": 4194304,
      "saved_copy_bytes": 0,
      "memory": {
        "parameters": 3145728,
        "masters": 1048576
      },
      "collectives": 40,
      "wire": {
        "all_reduce": {
          "inside": 1048576,
          "between": 2097152
        },
        "control": {
          "inside": 100,
          "between": 0
        }
      }
    }
  ]
}
)");
}

TEST(RunReport, ADamagedOneIsNamed) {
  for (
      const std::string text :
      {"", "{", "[]", R"({"first_step": 0, "step": 1, "ranks": []})",
       R"({"first_step": 0, "step": 1, "ranks": [{"peak_bytes": 1, "memory": {"?": 1}, "wire": {}}]})",
       R"({"first_step": 0, "step": 1, "ranks": [{"peak_bytes": 1, "memory": {}, "wire": {"data": {}}}]})"}) {
    try {
      RunReport::from_json(text, "runs/a/report.json");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_TRUE(std::string(error.what()).starts_with("runs/a/report.json: damaged")) << text;
    }
  }
}

TEST(RunReport, AColumnForEachRank) {
  RunReport report{.first_step = 10, .step = 20, .ranks = two_ranks()};
  report.ranks[1].saved_copy_bytes = 2 << 20;
  EXPECT_EQ(report.tables(2),
            "peak memory                         rank 0      rank 1\n"
            "  parameters                       3.0 MiB     3.0 MiB\n"
            "  masters                          1.0 MiB     1.0 MiB\n"
            "  all together                     5.0 MiB     4.0 MiB\n"
            "  copy to save (host)                  0 B     2.0 MiB\n"
            "sent to other ranks                 rank 0      rank 1  a step, rank 1\n"
            "  all_reduce inside nodes          1.0 MiB     1.0 MiB       102.4 KiB\n"
            "  all_reduce between nodes             0 B     2.0 MiB       204.8 KiB\n"
            "  control inside nodes               100 B       100 B            10 B\n"
            "  together                         1.0 MiB     3.0 MiB       307.2 KiB\n"
            "last start  10 steps from step 10, on 2 ranks");
}

TEST(RunReport, TheLargestAndTheBusiestOfManyRanks) {
  const RunReport report{.first_step = 0, .step = 1, .ranks = two_ranks()};
  EXPECT_EQ(report.tables(1),
            "peak memory                     largest, rank 0\n"
            "  parameters                            3.0 MiB\n"
            "  masters                               1.0 MiB\n"
            "  all together                          5.0 MiB\n"
            "sent to other ranks             busiest, rank 1  a step, rank 1\n"
            "  all_reduce inside nodes               1.0 MiB         1.0 MiB\n"
            "  all_reduce between nodes              2.0 MiB         2.0 MiB\n"
            "  control inside nodes                    100 B           100 B\n"
            "  together                              3.0 MiB         3.0 MiB\n"
            "last start  1 step from step 0, on 2 ranks");
}

TEST(RunReport, OneRankSendsNothing) {
  RankUse use;
  peak_of(use, MemoryClass::kData) = use.peak_bytes = 64;
  const RunReport report{.first_step = 0, .step = 2, .ranks = {use}};
  EXPECT_EQ(report.tables(8),
            "peak memory                         rank 0\n"
            "  data                                64 B\n"
            "  all together                        64 B\n"
            "sent to other ranks: nothing\n"
            "last start  2 steps from step 0, on 1 rank");
}

class RunFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "tandem-run-report-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    config_.run.dir = root_;
    config_.run.name = "a";
    config_.model.kind = "mlp";
    config_.train.steps = 20;
    config_.log.progress = ProgressMode::kNone;
    config_.log.tensorboard = false;
    make_directories(directory().path());
  }
  void TearDown() override { fs::remove_all(root_); }
  RunDirectory directory() const { return RunDirectory(config_.run); }
  void put(const std::string& path, const std::string& text) {
    FileWriter(path, FileWriter::Start::kEmpty).write(text);
  }
  // What a run prints at its end.
  std::string finish(int64_t first_step, int64_t step) {
    RunLog log(config_, directory(), first_step, DatasetInfo{}, {"host"});
    ::testing::internal::CaptureStdout();
    log.finish(false, "runs/a/checkpoints/step-00000020", {.step = step, .ranks = two_ranks()});
    return ::testing::internal::GetCapturedStdout();
  }

  std::string root_;
  Config config_;
};

TEST_F(RunFiles, MetricsHaveMemoryAndWire) {
  const RankUse use = two_ranks()[1];
  RunLog log(config_, directory(), 0, DatasetInfo{}, {"a", "b"});
  log.training({.step = 1,
                .steps = 1,
                .samples = 8,
                .seconds = 0.5,
                .loss = 2.5,
                .lr = 0.25,
                .grad_norm = 1.5,
                .mfu = 0.5,
                .slowest = {.rank = 1,
                            .ratio = 1.25,
                            .time = {.seconds = 0.175, .parts = {0.1, 0.05, 0, 0.025}}},
                .own_s = {0.1, 0.1250004},
                .wire = use.wire,
                .memory_peak = use.memory_peak,
                .peak_bytes = use.peak_bytes});
  EXPECT_EQ(read_file(directory().metrics()),
            "{\"step\":1,\"loss\":2.5,\"lr\":0.25,\"grad_norm\":1.5,\"step_ms\":500.0,"
            "\"images_per_s\":16.0,\"mfu\":0.5,\"wire_bytes\":3145728,\"exposed_comm_ms\":0.0,"
            "\"slowest\":{\"rank\":1,\"host\":\"b\",\"ratio\":1.25,\"step_ms\":175.0,\"compute_"
            "ms\":100.0,"
            "\"communication_ms\":50.0,\"data_ms\":0.0,\"optimizer_ms\":25.0,\"saving_ms\":0.0},"
            "\"peak_bytes\":4194304,"
            "\"wire\":{\"all_reduce\":{\"inside\":1048576,\"between\":2097152},"
            "\"control\":{\"inside\":100,\"between\":0}},"
            "\"memory\":{\"parameters\":3145728,\"masters\":1048576},\"own_ms\":[100.0,125.0]}\n");
}

TEST_F(RunFiles, TheRankThatWroteLongestIsNamed) {
  RunLog log(config_, directory(), 0, DatasetInfo{}, {"a", "a", "b", "b"});
  log.saved(3, {.stall_s = 0.5, .write_s = {1, 2, 5, 2}, .steps = 4});
  EXPECT_EQ(read_file(directory().metrics()),
            "{\"step\":3,\"checkpoint\":{\"stall_ms\":500.0,\"write_ms\":5000.0,"
            "\"slowest\":{\"rank\":2,\"host\":\"b\",\"ratio\":2.5},\"steps\":4}}\n");
}

TEST_F(RunFiles, TimesOfAtMost64RanksAreLogged) {
  RunLog log(config_, directory(), 0, DatasetInfo{}, {"a"});
  log.training({.step = 1, .steps = 2, .own_s = std::vector<double>(64, 0.0030014), .wire = {}});
  EXPECT_NE(read_file(directory().metrics()).find("\"own_ms\":[1.501,"), std::string::npos);
  log.training({.step = 2, .steps = 1, .own_s = std::vector<double>(65, 1.0), .wire = {}});
  const std::string lines = read_file(directory().metrics());
  EXPECT_EQ(lines.find("own_ms", lines.find('\n')), std::string::npos);
}

TEST_F(RunFiles, TheEndShowsAndKeepsWhatWasUsed) {
  const std::string shown = finish(10, 20);
  const RunReport report{.first_step = 10, .step = 20, .ranks = two_ranks()};
  EXPECT_TRUE(shown.starts_with(report.tables(1) + "\nfinished 20 steps\n")) << shown;
  EXPECT_EQ(read_file(directory().report()), report.json());
  EXPECT_FALSE(fs::exists(directory().report() + ".partial"));
}

// A finished run that is started again does no step and keeps its report.
TEST_F(RunFiles, AStartWithoutStepsKeepsTheReport) {
  finish(10, 20);
  EXPECT_TRUE(finish(20, 20).starts_with("finished 20 steps\n"));
  EXPECT_EQ(RunReport::from_json(read_file(directory().report()), "").first_step, 10);
}

TEST_F(RunFiles, AReportOfALaterEndIsRemoved) {
  finish(0, 20);
  const RunLog at_its_end(config_, directory(), 20, DatasetInfo{}, {"host"});
  EXPECT_TRUE(fs::exists(directory().report()));
  const RunLog before(config_, directory(), 10, DatasetInfo{}, {"host"});
  EXPECT_FALSE(fs::exists(directory().report()));
}

TEST_F(RunFiles, DescribesAFinishedRun) {
  finish(0, 20);
  put(directory().metrics(),
      "{\"step\":10,\"loss\":3.5}\n{\"step\":20,\"loss\":2.25}\n{\"step\":20,\"val_loss\":2.5}\n");
  const RunReport report{.first_step = 0, .step = 20, .ranks = two_ranks()};
  EXPECT_EQ(
      describe_run(directory()),
      "logged      2 lines, loss 2.25 at step 20, val_loss 2.5 at step 20\n" + report.tables(2));
  fs::remove(directory().metrics());
  EXPECT_EQ(describe_run(directory()), report.tables(2));
}

TEST_F(RunFiles, DescribesARunThatHasNotEnded) {
  const std::string line =
      "{\"step\":30,\"loss\":null,\"peak_bytes\":2048,\"memory\":{\"parameters\":1024},"
      "\"wire\":{\"all_gather\":{\"inside\":512,\"between\":0}}}\n";
  const std::string described =
      "logged      1 line, loss not finite at step 30\n"
      "peak memory                     largest rank\n"
      "  parameters                         1.0 KiB\n"
      "  all together                       2.0 KiB\n"
      "sent in step 30                 busiest rank\n"
      "  all_gather inside nodes              512 B\n"
      "  together                             512 B";
  put(directory().metrics(), line + "{\"step\":31,\"lo");
  EXPECT_EQ(describe_run(directory()), described);
  // The same after an end at step 20, when the run was started again for more steps.
  finish(0, 20);
  put(directory().metrics(), line);
  EXPECT_EQ(describe_run(directory()), described);
}

TEST_F(RunFiles, DescribesWhatThereIs) {
  EXPECT_EQ(describe_run(directory()), "");
  put(directory().metrics(), "[1]\n{\"step\":\"1\",\"loss\":2}\n");
  EXPECT_EQ(describe_run(directory()), "logged      0 lines");
  put(directory().metrics(), "{\"step\":1,\"loss\":2.5}\n");
  EXPECT_EQ(describe_run(directory()),
            "logged      1 line, loss 2.5 at step 1\nmemory, bytes sent: not in " +
                directory().metrics());
  for (const std::string& path : {directory().metrics(), directory().report()}) {
    put(path, "{\"step\":1,\"loss\":2.5,\"memory\":{},\"wire\":{}}\n");
    try {
      describe_run(directory());
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(path + ": damaged")) << error.what();
    }
    fs::remove(path);
  }
}

}  // namespace
}  // namespace tandem
