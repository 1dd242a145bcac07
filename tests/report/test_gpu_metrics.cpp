#include <gtest/gtest.h>

#include <string>

#include "src/report/gpu_metrics.h"
#include "tests/report/run_files.h"

namespace tandem {
namespace {

using enum GpuFigure;

GpuUse use_of(double energy_j, double clock_mhz, double throttled) {
  GpuUse use;
  use[kSamples] = 2;
  use[kEnergyJ] = energy_j;
  use[kClockMhz] = clock_mhz;
  use[kThrottled] = throttled;
  return use;
}

std::string line(const GpuUses& ranks, size_t all_ranks) {
  return to_json_line(GpuMetrics().add(ranks, all_ranks, 8, "tokens"));
}

TEST(GpuMetrics, EachFigureOverTheRanks) {
  GpuUse cool = use_of(5, 1900, 0);
  EXPECT_EQ(line({cool, std::nullopt, use_of(7, 1000, 0.5)}, 3),
            "{\"gpu\":{\"samples\":{\"mean\":2.0,\"least\":2.0,\"greatest\":2.0},\"use\":null,"
            "\"memory_bytes\":null,\"power_w\":null,"
            "\"energy_j\":{\"mean\":6.0,\"least\":5.0,\"greatest\":7.0},\"temperature_c\":null,"
            "\"clock_mhz\":{\"mean\":1450.0,\"least\":1000.0,\"greatest\":1900.0},"
            "\"throttled\":{\"mean\":0.25,\"least\":0.0,\"greatest\":0.5},\"ecc_errors\":null,"
            "\"remapped_pending\":null,\"remapped_failed\":null,\"nvlink_bytes\":null,"
            "\"xids\":null,\"throttled_ranks\":[2]},\"joules_per_token\":null}");
  EXPECT_EQ(line({std::nullopt, std::nullopt}, 2), "{}");
  EXPECT_EQ(line({}, 2), "{}");
}

TEST(GpuMetrics, JoulesOfAllRanks) {
  const auto joules = [](const GpuUses& ranks, size_t all_ranks) {
    GpuMetrics metrics;
    metrics.add(ranks, all_ranks, 1000, "tokens");
    const std::string text = to_json_line(metrics.add(ranks, all_ranks, 8, "tokens"));
    return text.substr(text.rfind(':') + 1);
  };
  const GpuUse five = use_of(5, 1900, 0), seven = use_of(7, 1900, 0);
  EXPECT_EQ(joules({five, seven}, 2), "1.5}");
  EXPECT_EQ(joules({five, seven}, 4), "3.0}");  // of one of two islands
  GpuUse other = seven;
  other[kEnergyJ].reset();
  EXPECT_EQ(joules({five, other}, 2), "null}");
}

TEST(GpuMetrics, JoulesWaitForEachRank) {
  GpuMetrics metrics;
  const GpuUse five = use_of(5, 1900, 0), silent;
  const auto joules = [&](const GpuUses& ranks, double images) {
    return to_json_line({metrics.add(ranks, 2, images, "images")[1]});
  };
  EXPECT_EQ(joules({silent, five}, 4), "{\"joules_per_image\":null}");
  EXPECT_EQ(joules({five, silent}, 4), "{\"joules_per_image\":null}") << "of a part of the time";
  EXPECT_EQ(joules({five, silent}, 4), "{\"joules_per_image\":null}");
  EXPECT_EQ(joules({silent, silent}, 8), "{\"joules_per_image\":null}");
  EXPECT_EQ(joules({five, five}, 8), "{\"joules_per_image\":0.75}");  // 15 J over 20
  EXPECT_EQ(joules({five, five}, 8), "{\"joules_per_image\":1.25}");
}

TEST(GpuMetrics, TheClockBesideTheMedian) {
  GpuUse unknown = use_of(0, 0, 0);
  unknown[kClockMhz].reset();
  const GpuUses ranks = {use_of(0, 1980, 0), use_of(0, 900.4, 0), unknown,
                         std::nullopt,       use_of(0, 1950, 0),  use_of(0, 1990, 0)};
  EXPECT_EQ(clock_beside_median(ranks, 1), "; its GPU runs at 900 MHz, the median at 1980 MHz");
  EXPECT_EQ(clock_beside_median(ranks, 2), "");
  EXPECT_EQ(clock_beside_median(ranks, 3), "");
  EXPECT_EQ(clock_beside_median({}, 0), "");
}

TEST(GpuMetrics, EachGapIsNamedOnce) {
  GpuUse all;
  for (auto& figure : all.figures) {
    figure = 1;
  }
  GpuUse without = all, silent;
  without[kEnergyJ].reset();
  silent[kSamples] = 0;
  GpuMetrics gaps;
  EXPECT_EQ(gaps.new_gaps({all, silent, std::nullopt}), "");
  EXPECT_EQ(gaps.new_gaps({all, without, without}), "energy_j (rank 1)");
  without[kXids].reset();
  EXPECT_EQ(gaps.new_gaps({without, without}), "xids (rank 0)");
  EXPECT_EQ(gaps.new_gaps({without, without}), "");
}

TEST_F(RunFiles, TheWarningAboutASlowRankSaysItsClock) {
  const std::unique_ptr<RunLog> log = start(0);
  ::testing::internal::CaptureStdout();
  for (int64_t step = 1; step <= 8; ++step) {
    log->training({.step = step,
                   .steps = 1,
                   .samples = 8,
                   .seconds = 1,
                   .slowest = {.rank = 1, .ratio = 2, .more_s = 1, .time = {.parts = {1}}},
                   .gpus = {use_of(1, 1980, 0), use_of(1, 900, 0)}});
  }
  const std::string shown = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(shown.find("0 % in the optimizer; its GPU runs at 900 MHz, the median at 1980 MHz\n"),
            std::string::npos)
      << shown;
  EXPECT_NE(shown.find("not known   of GPUs: use (rank 0), memory_bytes (rank 0), "),
            std::string::npos)
      << shown;
}

}  // namespace
}  // namespace tandem
