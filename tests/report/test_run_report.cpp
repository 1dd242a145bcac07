#include <gtest/gtest.h>

#include <string>

#include "src/core/error.h"
#include "src/io/file.h"
#include "src/report/run_report.h"
#include "tests/report/run_files.h"

namespace tandem {
namespace {

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
  use.reserved_bytes = ++next;
  use.saved_copy_bytes = ++next;
  return use;
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

TEST(RankUse, TextHasTheFiguresOfTheGpu) {
  RankUse use = distinct_use();
  use.gpu.emplace();
  EXPECT_EQ(RankUse::from_text(use.text()), use);
  (*use.gpu)[GpuFigure::kEnergyJ] = 0.1;
  EXPECT_EQ(RankUse::from_text(use.text()), use);
  EXPECT_THROW(RankUse::from_text(use.text() + "1"), Error);
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
                   .ranks = {distinct_use(), RankUse{}, two_ranks()[1]},
                   .starts = {{.version = "0.1.0",
                               .time = 1790000000.25,
                               .hosts = {"a", "b"},
                               .ranks = 3,
                               .device = "1 thread",
                               .first_step = 10,
                               .step = 20,
                               .duration_s = 2.5,
                               .unit = "images",
                               .units_per_s = 48.5,
                               .training = {.last = 2.5, .best = 2.25},
                               .state = "finished"},
                              {.unit = "tokens"}}};
  EXPECT_EQ(RunReport::from_json(report.json(), "report.json"), report);
  report.unused_parameters.reset();
  EXPECT_EQ(RunReport::from_json(report.json(), "report.json"), report);
}

TEST(RunReport, JsonNamesWhatOccurs) {
  const RunReport report{.first_step = 0,
                         .step = 20,
                         .read_ahead = 2,
                         .unused_parameters = 1,
                         .ranks = {two_ranks()[1]},
                         .starts = {{.version = "0.1.0",
                                     .time = 1790000000.25,
                                     .hosts = {"a"},
                                     .ranks = 2,
                                     .device = "1 thread",
                                     .step = 20,
                                     .duration_s = 2.5,
                                     .unit = "tokens",
                                     .units_per_s = 48.5,
                                     .training = {.last = 2.5, .best = 2.25},
                                     .validation = {.best = 3},
                                     .state = "stopped"}}};
  EXPECT_EQ(report.json(), R"({
  "first_step": 0,
  "step": 20,
  "read_ahead": 2,
  "unused_parameters": 1,
  "ranks": [
    {
      "peak_bytes": 4194304,
      "reserved_bytes": 6291456,
      "saved_copy_bytes": 0,
      "host_bytes": 0,
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
  ],
  "starts": [
    {
      "version": "0.1.0",
      "time": 1790000000.25,
      "hosts": [
        "a"
      ],
      "ranks": 2,
      "device": "1 thread",
      "first_step": 0,
      "step": 20,
      "duration_s": 2.5,
      "tokens_per_s": 48.5,
      "loss": 2.5,
      "best_loss": 2.25,
      "best_val_loss": 3.0,
      "state": "stopped"
    }
  ]
}
)");
}

TEST(RunReport, ADamagedOneIsNamed) {
  for (
      const std::string text :
      {"", "{", "[]", R"({"first_step": 0, "step": 1, "ranks": []})",
       R"({"first_step": 0, "step": 1, "ranks": [], "starts": [{"version": "0.1.0"}]})",
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
