#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "src/report/run_log.h"
#include "tests/report/run_files.h"

namespace tandem {
namespace {

nlohmann::ordered_json last_line(const std::string& path) {
  std::string text = read_file(path);
  text.pop_back();
  return nlohmann::ordered_json::parse(text.substr(text.rfind('\n') + 1));
}

TEST_F(RunFiles, MetricsHaveMemoryAndWire) {
  const RankUse use = two_ranks()[1];
  start(0)->training({.step = 1,
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
                      .use = use});
  nlohmann::ordered_json line = last_line(directory().metrics());
  const double now = static_cast<double>(std::time(nullptr));
  EXPECT_LE(line["time"], now + 1);
  EXPECT_GE(line["time"], now - 600);
  EXPECT_GT(line["elapsed_s"], 0);
  EXPECT_LE(line["elapsed_s"], 600);
  line.erase("time");
  line.erase("elapsed_s");
  EXPECT_EQ(line.dump(),
            "{\"step\":1,\"epoch\":0.25,\"samples\":12,\"loss\":2.5,\"lr\":0.25,"
            "\"grad_norm\":1.5,\"step_ms\":500.0,"
            "\"images_per_s\":16.0,\"mfu\":0.5,\"wire_bytes\":3145728,\"exposed_comm_ms\":0.0,"
            "\"slowest\":{\"rank\":1,\"host\":\"b\",\"ratio\":1.25,\"step_ms\":175.0,\"compute_"
            "ms\":100.0,"
            "\"communication_ms\":50.0,\"data_ms\":0.0,\"optimizer_ms\":25.0,\"copy_ms\":0.0,"
            "\"saving_ms\":0.0},"
            "\"peak_bytes\":4194304,"
            "\"wire\":{\"all_reduce\":{\"inside\":1048576,\"between\":2097152},"
            "\"control\":{\"inside\":100,\"between\":0}},"
            "\"memory\":{\"parameters\":3145728,\"masters\":1048576},\"own_ms\":[100.0,125.0]}");
}

TEST_F(RunFiles, TheRankThatWroteLongestIsNamed) {
  RunLog log(config_, directory(), RunState{}, DatasetInfo{}, {"a", "a", "b", "b"});
  log.saved(3, {.stall_s = 0.5, .write_s = {1, 2, 5, 2}, .steps = 4});
  const nlohmann::ordered_json line = last_line(directory().metrics());
  EXPECT_EQ(line["step"], 3);
  EXPECT_EQ(line["checkpoint"].dump(),
            "{\"stall_ms\":500.0,\"write_ms\":5000.0,"
            "\"slowest\":{\"rank\":2,\"host\":\"b\",\"ratio\":2.5},\"steps\":4}");
}

TEST_F(RunFiles, TimesOfAtMost64RanksAreLogged) {
  RunLog log(config_, directory(), RunState{}, DatasetInfo{}, {"a"});
  log.training({.step = 1, .steps = 2, .own_s = std::vector<double>(64, 0.0030014)});
  EXPECT_NE(read_file(directory().metrics()).find("\"own_ms\":[1.501,"), std::string::npos);
  log.training({.step = 2, .steps = 1, .own_s = std::vector<double>(65, 1.0)});
  const std::string lines = read_file(directory().metrics());
  EXPECT_EQ(lines.find("own_ms", lines.find('\n')), std::string::npos);
}

TEST_F(RunFiles, ElapsedTimeGoesOnAndSkippedBatchesAreNotSeen) {
  put(directory().metrics(),
      "{\"step\":9,\"elapsed_s\":1000.5}\n{\"step\":10}\n{\"step\":11,\"elapsed_s\":9000}\n");
  const std::unique_ptr<RunLog> log = start(10, 3);
  log->validation(14, {.loss = 2.5});
  const nlohmann::ordered_json line = last_line(directory().metrics());
  EXPECT_GE(line["elapsed_s"], 1000.5);
  EXPECT_LE(line["elapsed_s"], 1600);
  EXPECT_EQ(line["epoch"], 14 * 12 / 48.0);
  EXPECT_EQ(line["samples"], (14 - 3) * 12);
}

TEST_F(RunFiles, TheReportHasEachStart) {
  put(directory().metrics(), "{\"step\":5,\"loss\":1.5}\n{\"step\":6,\"loss\":null}\n");
  start(0).reset();  // dies at once, and the lines above go away
  put(directory().metrics(), "{\"step\":5,\"loss\":1.5}\n{\"step\":6,\"loss\":null}\n");
  std::unique_ptr<RunLog> log = start(8);
  EXPECT_EQ(report().starts[1].state, "running");
  log->step(9, 2.5);
  log->validation(9, {.loss = 2.5});
  log->saved(9, {.write_s = {1, 1, 1}});
  log = start(9);  // that one died after a checkpoint
  log->step(11, 2.5);
  StepMetrics metrics;
  metrics.step = 11;
  metrics.steps = 1;
  metrics.seconds = 1;
  metrics.loss = 1.25;
  log->training(metrics);
  ::testing::internal::CaptureStdout();
  log->finish(true, "checkpoint", {.step = 11, .ranks = two_ranks()});
  ::testing::internal::GetCapturedStdout();
  const RunReport all = report();
  EXPECT_EQ(all.ranks, two_ranks());
  ASSERT_EQ(all.starts.size(), 3U);
  const RunStart &second = all.starts[1], &third = all.starts[2];
  EXPECT_EQ(all.starts[0].state, "died");
  EXPECT_EQ(all.starts[0].training, Losses{});
  EXPECT_EQ(second.state, "died");
  EXPECT_EQ(std::pair(second.first_step, second.step), std::pair(int64_t{8}, int64_t{9}));
  EXPECT_EQ(second.training, (Losses{.best = 1.5}));  // the last one was not finite
  EXPECT_EQ(second.validation, (Losses{.last = 2.5, .best = 2.5}));
  EXPECT_EQ(third.state, "stopped");
  EXPECT_EQ(std::pair(third.first_step, third.step), std::pair(int64_t{9}, int64_t{11}));
  EXPECT_EQ(third.hosts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(third.ranks, 3);
  EXPECT_EQ(third.device, "1 thread");
  EXPECT_FALSE(third.version.empty());
  EXPECT_EQ(third.training, (Losses{.last = 1.25, .best = 1.25}));
  EXPECT_EQ(third.validation, (Losses{.last = 2.5, .best = 2.5}));
  EXPECT_GE(third.time, second.time);
  EXPECT_NEAR(third.units_per_s * third.duration_s, 2 * 12, 1e-9);  // two steps; a rounding each
}

TEST_F(RunFiles, TheEndShowsAndKeepsWhatWasUsed) {
  const std::string shown = finish(10, 20);
  const RunReport used{.first_step = 10, .step = 20, .ranks = two_ranks()};
  EXPECT_TRUE(shown.starts_with(used.tables(1) + "\nfinished 20 steps\n")) << shown;
  RunReport kept = report();
  kept.starts.clear();
  EXPECT_EQ(kept, used);
  EXPECT_FALSE(fs::exists(directory().report() + ".partial"));
}

// A finished run that is started again does no step and keeps its report.
TEST_F(RunFiles, AStartWithoutStepsKeepsTheReport) {
  finish(10, 20);
  EXPECT_TRUE(finish(20, 20).starts_with("finished 20 steps\n"));
  EXPECT_EQ(report().first_step, 10);
  EXPECT_EQ(report().ranks, two_ranks());
  EXPECT_EQ(report().starts.size(), 2U);
}

TEST_F(RunFiles, FiguresOfALaterEndAreDropped) {
  finish(0, 20);
  start(20);
  EXPECT_EQ(report().ranks, two_ranks());
  start(10);
  EXPECT_TRUE(report().ranks.empty());
  EXPECT_EQ(report().starts.size(), 3U);
}

}  // namespace
}  // namespace tandem
