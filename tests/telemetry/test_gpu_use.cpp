#include <gtest/gtest.h>

#include <string>

#include "src/core/error.h"
#include "src/telemetry/gpu_use.h"

namespace tandem {
namespace {

using enum GpuFigure;

GpuUse sample(double energy, double throttled) {
  GpuUse made;
  made[kUse] = throttled / 2;
  made[kEnergyJ] = energy;
  made[kThrottled] = throttled;
  made[kEccErrors] = energy;
  made[kTemperatureC] = -energy;
  return made;
}

TEST(GpuUse, TextGivesTheSameBits) {
  GpuUse use;
  EXPECT_EQ(GpuUse::from_text(use.text()), use);
  double next = 0.1;
  for (auto& figure : use.figures) {
    figure = next;
    next *= -3;
  }
  use[kEnergyJ].reset();
  EXPECT_EQ(GpuUse::from_text(use.text()), use);
  EXPECT_THROW(GpuUse::from_text(""), Error);
  EXPECT_THROW(GpuUse::from_text(use.text() + "1"), Error);
  EXPECT_THROW(GpuUse::from_text("x" + use.text()), Error);
}

TEST(GpuWindow, WhatIsNotKnownStaysSo) {
  GpuWindow window;
  const GpuUse before = window.take();
  EXPECT_EQ(before[kSamples], 0);
  EXPECT_EQ(before[kUse], std::nullopt);
  window.add(GpuUse{});
  const GpuUse use = window.take();
  EXPECT_EQ(use[kSamples], 1);
  EXPECT_EQ(use[kEnergyJ], std::nullopt);
}

TEST(GpuWindow, MeansCountersAndGreatestOfAStretch) {
  GpuWindow window;
  window.add(sample(100, 0));
  window.add(sample(103, 1));
  const GpuUse first = window.take();
  EXPECT_EQ(first[kSamples], 2);
  EXPECT_EQ(first[kUse], 0.25);
  EXPECT_EQ(first[kThrottled], 0.5);
  EXPECT_EQ(first[kEnergyJ], 3);
  EXPECT_EQ(first[kEccErrors], 3);
  EXPECT_EQ(first[kTemperatureC], -100);
  window.add(sample(110, 1));
  const GpuUse second = window.take();  // what one sample has counted begins at the one before
  EXPECT_EQ(second[kSamples], 1);
  EXPECT_EQ(second[kThrottled], 1);
  EXPECT_EQ(second[kEnergyJ], 7);
  EXPECT_EQ(second[kEccErrors], 10);
  EXPECT_EQ(second[kTemperatureC], -110);
}

TEST(GpuWindow, TheMeanOfEqualValuesHasTheirBits) {
  GpuWindow window;
  for (int i = 0; i < 50; ++i) {
    GpuUse use;
    use[kUse] = 0.15;
    window.add(use);
  }
  EXPECT_EQ(window.take()[kUse], 0.15);
}

}  // namespace
}  // namespace tandem
