#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "src/core/error.h"
#include "src/telemetry/nvml.h"

namespace tandem {
namespace {

using enum GpuFigure;
using namespace std::chrono_literals;

std::string why_not(const std::string& library, const std::string& gpu) {
  try {
    NvmlGpu(library, gpu);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "";
}

TEST(NvmlGpu, EveryFigureOfOneGpu) {
  const NvmlGpu gpu(STAND_IN, "0000:70:00.0");
  EXPECT_EQ(gpu.address(), "00000000:70:00.0");
  const NvmlGpu::Sample sample = gpu.sample();
  EXPECT_EQ(sample.throttled_by, "");
  const GpuUse& is = sample.figures;
  EXPECT_EQ(is[kUse], 0.75);
  EXPECT_EQ(is[kMemoryBytes], 8.0 * (1 << 30));
  EXPECT_EQ(is[kPowerW], 107.5);
  EXPECT_EQ(is[kEnergyJ], 508);
  EXPECT_EQ(is[kTemperatureC], 47);
  EXPECT_EQ(is[kClockMhz], 1700);
  EXPECT_EQ(is[kThrottled], 0);
  EXPECT_EQ(is[kEccErrors], 3);
  EXPECT_EQ(is[kRemappedPending], 0);
  EXPECT_EQ(is[kRemappedFailed], 0);
  EXPECT_EQ(is[kNvlinkBytes], 1024.0 * (7000 + 7 + 9000 + 1));
  EXPECT_EQ(gpu.sample().figures[kEnergyJ], 516);
}

TEST(NvmlGpu, BySomeNumber) {
  const NvmlGpu gpu(STAND_IN, "5");
  EXPECT_EQ(gpu.address(), "00000000:50:00.0");
  EXPECT_EQ(gpu.sample().figures[kRemappedPending], 1);
}

constexpr const char* kThrottledBy =
    "software power cap, hardware slowdown, software thermal slowdown, hardware thermal slowdown, "
    "hardware power brake";

TEST(NvmlGpu, ThrottlingIsPowerAndHeatOnly) {
  const NvmlGpu::Sample sample = NvmlGpu(STAND_IN, "1").sample();
  EXPECT_EQ(sample.throttled_by, kThrottledBy);
  EXPECT_EQ(sample.figures[kThrottled], 1);
}

TEST(NvmlGpu, WhatAGpuLacksIsEmpty) {
  EXPECT_EQ(NvmlGpu(STAND_IN, "3").sample().figures[kEnergyJ], std::nullopt);
  EXPECT_EQ(NvmlGpu(STAND_IN, "4").sample().figures[kNvlinkBytes], std::nullopt);
}

TEST(NvmlGpu, WhatTheLibraryLacksIsEmpty) {
  NvmlGpu gpu(STAND_IN_OLD, "1");
  const NvmlGpu::Sample sample = gpu.sample();
  EXPECT_EQ(sample.figures[kEnergyJ], std::nullopt);
  EXPECT_EQ(sample.figures[kRemappedFailed], std::nullopt);
  EXPECT_EQ(sample.throttled_by, kThrottledBy);  // by its older name
  EXPECT_FALSE(gpu.has_events());
  EXPECT_EQ(gpu.wait_for_xid(1ms), std::nullopt);
}

TEST(NvmlGpu, EveryXidOnce) {
  NvmlGpu gpu(STAND_IN, "2");
  EXPECT_TRUE(gpu.has_events());
  EXPECT_EQ(gpu.wait_for_xid(1h), 79);
  EXPECT_EQ(gpu.wait_for_xid(1h), 79);
  EXPECT_EQ(gpu.wait_for_xid(1ms), std::nullopt);
}

TEST(NvmlGpu, SaysWhatIsNotThere) {
  EXPECT_NE(why_not("/nowhere/libnvidia-ml.so.1", "0").find("/nowhere/libnvidia-ml.so.1"),
            std::string::npos);
  EXPECT_NE(why_not("libc.so.6", "0").find("libc.so.6 does not start (NVML's error 13)"),
            std::string::npos);
  EXPECT_NE(why_not(STAND_IN, "8").find("has no GPU 8 (NVML's error 6)"), std::string::npos);
}

}  // namespace
}  // namespace tandem
