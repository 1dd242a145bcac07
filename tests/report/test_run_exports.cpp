#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/report/run_exports.h"
#include "tests/report/run_files.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// Three ranks, of which rank 1 is on a host of its own and rank 2's GPU does not know its energy.
class Exporting : public RunFiles {
 protected:
  void SetUp() override {
    RunFiles::SetUp();
    config_.log.prometheus = root_ + "/prometheus";
    config_.log.emf = root_ + "/emf";
  }
  std::unique_ptr<RunExports> of_rank(int rank, const std::string& gpu = "0000:8a:00.0") const {
    return std::make_unique<RunExports>(config_, rank, hosts_, gpu);
  }
  std::string file_of(int rank) const {
    return read_file(config_.log.prometheus + "/tandem_a_" + std::to_string(rank) + ".prom");
  }
  std::vector<Json> lines() const {
    std::vector<Json> lines;
    std::istringstream text(read_file(config_.log.emf));
    for (std::string line; std::getline(text, line);) {
      lines.push_back(Json::parse(line));
      lines.back().erase("_aws");
    }
    return lines;
  }
  static GpuUse use(double share, double power_w, double throttled, double xids) {
    GpuUse use;
    use[GpuFigure::kSamples] = 1;
    use[GpuFigure::kUse] = share;
    use[GpuFigure::kPowerW] = power_w;
    use[GpuFigure::kThrottled] = throttled;
    use[GpuFigure::kXids] = xids;
    return use;
  }

  std::vector<std::string> hosts_ = {"n0", "n1", "n0"};
  StepMetrics metrics_{.step = 20,
                       .steps = 10,
                       .samples = 120,
                       .seconds = 4,
                       .loss = 2.5,
                       .own_s = {1, 2, 3},
                       .gpus = {use(0.5, 300, 0, 0), use(0.75, 400, 0.5, 1), use(1, 500, 1, 2)}};
};

TEST_F(Exporting, AFileForEachRank) {
  metrics_.gpus[0]->figures[static_cast<size_t>(GpuFigure::kEnergyJ)] = 1000;
  const auto first = of_rank(0), second = of_rank(1, "");
  first->write(metrics_, 0, 12.5);
  first->write(metrics_, 0, 12.5);
  second->write(metrics_, 0, std::nullopt);
  const std::string labels = "{run=\"a\",rank=\"0\",host=\"n0\",gpu=\"0000:8a:00.0\"} ";
  for (const char* line :
       {"step@20.0", "own_seconds@0.1", "loss@2.5", "step_seconds@0.4", "images_per_second@30.0",
        "usd_total@12.5", "gpu_use_ratio@0.5", "gpu_power_watts@300.0",
        "gpu_energy_joules_total@2000.0", "gpu_throttled_ratio@0.0", "gpu_xids_total@0.0"}) {
    std::string expected = str("\ntandem_", line, "\n");
    expected.replace(expected.find('@'), 1, labels);
    EXPECT_NE(file_of(0).find(expected), std::string::npos) << expected << file_of(0);
  }
  EXPECT_EQ(file_of(0).find("temperature"), std::string::npos) << "not known";
  EXPECT_NE(file_of(1).find("tandem_gpu_power_watts{run=\"a\",rank=\"1\",host=\"n1\"} 400.0\n"),
            std::string::npos);
  EXPECT_EQ(file_of(1).find("loss"), std::string::npos);
}

TEST_F(Exporting, ALineForTheRunAndOneForEachHost) {
  const auto first = of_rank(0), second = of_rank(1), third = of_rank(2);
  for (const auto* exports : {&first, &second, &third}) {
    (*exports)->write(metrics_, 0, std::nullopt);
  }
  EXPECT_EQ(lines(),
            (std::vector<Json>{
                {{"Run", "a"}, {"StepTime", 400.0}, {"Loss", 2.5}, {"UnitsPerSecond", 30.0}},
                {{"Run", "a"},
                 {"Host", "n0"},
                 {"GpuUse", 75.0},
                 {"GpuLeastUse", 50.0},
                 {"GpuPower", 800.0},
                 {"GpuThrottled", 1.0}},
                {{"Run", "a"},
                 {"Host", "n1"},
                 {"GpuUse", 75.0},
                 {"GpuLeastUse", 75.0},
                 {"GpuPower", 400.0},
                 {"GpuThrottled", 1.0}}}));
  metrics_.loss = std::nan("");
  first->write(metrics_, 0, 12.5);
  EXPECT_EQ(lines()[3],
            (Json{{"Run", "a"}, {"StepTime", 400.0}, {"UnitsPerSecond", 30.0}, {"Usd", 12.5}}));
}

TEST_F(Exporting, AnXidIsALineOfItsOwn) {
  const std::function<void()> exports = xid_export(config_, "n1");
  exports();
  exports();
  EXPECT_EQ(lines(), std::vector<Json>(2, Json{{"Run", "a"}, {"Host", "n1"}, {"Xid", 1.0}}));
  config_.log.emf.clear();
  EXPECT_FALSE(xid_export(config_, "n1"));
}

TEST_F(Exporting, TheFirstRankOfAHostRemovesWhatKilledStartsLeft) {
  const std::string folder = config_.log.prometheus + "/";
  fs::create_directories(folder);
  for (const char* name : {"tandem_a_0.prom", "tandem_a_17.prom", "tandem_a_3.prom.partial",
                           "tandem_a_1_0.prom", "tandem_a_1.prom.old", "tandem_b_0.prom"}) {
    std::ofstream(folder + name);
  }
  const auto count = [&] { return std::distance(fs::directory_iterator(folder), {}); };
  of_rank(2);
  EXPECT_EQ(count(), 6);
  const auto first = of_rank(0);
  EXPECT_EQ(count(), 3);
  for (const char* name : {"tandem_a_1_0.prom", "tandem_a_1.prom.old", "tandem_b_0.prom"}) {
    EXPECT_TRUE(fs::exists(folder + name)) << name << " is of another run, or of nobody's";
  }
}

TEST_F(Exporting, AGpuThatNobodyLookedAtKeepsItsFigures) {
  const auto first = of_rank(0);
  first->write(metrics_, 0, std::nullopt);
  metrics_.gpus = {GpuUse(), use(0, 0, 0, 0), use(0, 700, 0, 2)};
  first->write(metrics_, 0, std::nullopt);
  EXPECT_EQ(lines()[3], (Json{{"Run", "a"},
                              {"Host", "n0"},
                              {"GpuUse", 25.0},
                              {"GpuLeastUse", 0.0},
                              {"GpuPower", 1000.0},
                              {"GpuThrottled", 0.0}}));
  EXPECT_NE(file_of(0).find("tandem_gpu_power_watts"), std::string::npos);
  metrics_.gpus[0].reset();  // its watch has ended
  first->write(metrics_, 0, std::nullopt);
  EXPECT_EQ(lines()[5]["GpuPower"], 700.0);
  EXPECT_EQ(file_of(0).find("tandem_gpu_power_watts"), std::string::npos);
}

TEST_F(Exporting, AGpuThatDoesNotAnswerHasOnlyItsCounters) {
  config_.log.gpu_every_s = 0.9;
  const auto first = of_rank(0);
  first->write(metrics_, 0, std::nullopt);
  metrics_.gpus[0] = GpuUse();
  for (const double silent_s : {4.5, 9.5}) {
    first->write(metrics_, 0, std::nullopt);
    const bool is_known = silent_s < 9;
    EXPECT_EQ(lines().back()["GpuPower"], is_known ? 800.0 : 500.0);
    EXPECT_EQ(file_of(0).find("tandem_gpu_power_watts") != std::string::npos, is_known);
    EXPECT_NE(file_of(0).find("tandem_gpu_xids_total"), std::string::npos);
    metrics_.seconds = 5.5;
  }
}

TEST_F(Exporting, OfAnIslandRanksBeginLater) {
  metrics_.own_s = {3};
  metrics_.gpus = {use(1, 500, 1, 0)};
  hosts_ = {"n0", "n1", "n2"};
  of_rank(2)->write(metrics_, 2, std::nullopt);
  EXPECT_EQ(lines().at(0)["GpuPower"], 500.0);
}

TEST_F(Exporting, WithoutGpusThereIsNoLineOfHosts) {
  metrics_.gpus.assign(3, std::nullopt);
  const auto second = of_rank(1, "");
  second->write(metrics_, 0, std::nullopt);
  EXPECT_FALSE(fs::exists(config_.log.emf));
  EXPECT_NE(file_of(1).find("tandem_step{"), std::string::npos);
}

}  // namespace
}  // namespace tandem
