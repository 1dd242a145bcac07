#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/report/run_cost.h"
#include "tests/report/run_files.h"

namespace tandem {
namespace {

std::vector<nlohmann::ordered_json> lines_of(const std::string& path) {
  std::vector<nlohmann::ordered_json> lines;
  read_metrics(path, [&](const nlohmann::ordered_json& line) { lines.push_back(line); });
  return lines;
}

// A dollar a node and second. What is made later knows of the time before.
TEST_F(RunFiles, NodesArePaidFromTheStartOfTheProgram) {
  config_.run.usd_per_node_hour = 3600;
  const RunCost first(config_, directory(), {}, 2);
  double usd = 0;
  while (usd < 2e-3) {
    usd = first.usd();
  }
  EXPECT_GE(RunCost(config_, directory(), {}, 2).usd(), usd);
  const double one = RunCost(config_, directory(), {}, 1).usd();
  EXPECT_LE(2 * one, RunCost(config_, directory(), {}, 2).usd());
  EXPECT_GE(2 * one, usd);
}

TEST_F(RunFiles, EarlierStartsArePaidToo) {
  const std::vector<RunStart> earlier = {{.usd = 5}, {.usd = 7}};
  EXPECT_EQ(RunCost(config_, directory(), earlier, 2).usd(), 7);
  put(directory().metrics(), "{\"step\":1,\"usd\":8.5}\n{\"step\":2}\n{\"step\":3,\"usd\":null}\n");
  EXPECT_FALSE(RunCost(config_, directory(), earlier, 2).is_known());
  config_.run.usd_per_node_hour = 1e-6;
  EXPECT_NEAR(RunCost(config_, directory(), earlier, 2).usd(), 8.5, 1e-6);  // of less than 1800 s
}

// Steps that are done again were paid for once already. Their lines move aside.
TEST_F(RunFiles, WhatMovesAsideWasPaid) {
  config_.run.usd_per_node_hour = 36;
  put(directory().metrics(), "{\"step\":5,\"usd\":3}\n{\"step\":9,\"usd\":400}\n");
  start(5)->training({.step = 6, .steps = 1, .samples = 12, .seconds = 1});
  EXPECT_GT(lines_of(directory().metrics()).back()["usd"], 400);
  EXPECT_GT(report().starts.back().usd, 400);
}

TEST_F(RunFiles, PricesAreInMetricsReportAndLastLines) {
  config_.run.usd_per_node_hour = 36;
  start(0)->training({.step = 4, .steps = 4, .samples = 48, .seconds = 1});
  const nlohmann::ordered_json line = lines_of(directory().metrics()).back();
  const double usd = line["usd"];
  EXPECT_EQ(line["usd_per_1e6_images"], usd / line["samples"].get<double>() * 1e6);
  const std::string said = finish(4, 20);
  EXPECT_NE(said.find("\ncost        "), std::string::npos);
  EXPECT_NE(said.find(" dollars on 1 node at 36 an hour; "), std::string::npos);
  EXPECT_NE(said.find(" for 10^6 images\n"), std::string::npos);
  EXPECT_GT(report().starts.back().usd, usd);
  EXPECT_EQ(RunStart::from_json(report().starts.back().json()).usd, report().starts.back().usd);
  EXPECT_TRUE(RunCost(config_, directory(), {}, 2).text(0).ends_with(" an hour"));
}

TEST_F(RunFiles, WithoutAPriceNothingIsSaid) {
  start(0)->training({.step = 4, .steps = 4, .samples = 48, .seconds = 1});
  EXPECT_FALSE(lines_of(directory().metrics()).back().contains("usd"));
  EXPECT_EQ(finish(4, 20).find("\ncost "), std::string::npos);
  EXPECT_EQ(read_file(directory().report()).find("usd"), std::string::npos);
}

}  // namespace
}  // namespace tandem
