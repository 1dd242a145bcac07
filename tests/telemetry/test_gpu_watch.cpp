#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "src/telemetry/gpu_watch.h"

namespace tandem {
namespace {

using enum GpuFigure;
using namespace std::chrono_literals;

GpuWatch::Options options(const std::string& gpu) {
  return {.nvml = STAND_IN, .gpu = gpu, .period = 1ms, .rank = 3, .host = "node1"};
}

// Takes until the event is there.
GpuUse take_until(GpuWatch& watch, const std::function<bool(const GpuUse&)>& is_there) {
  for (;;) {
    const std::optional<GpuUse> use = watch.take();
    if (use && is_there(*use)) {
      return *use;
    }
    std::this_thread::yield();
  }
}

bool has_samples(const GpuUse& use) { return use[kSamples] > 0.0; }

TEST(GpuWatch, LooksAtItsGpuAgainAndAgain) {
  GpuWatch watch(options("00000000:70:00.0"));
  take_until(watch, has_samples);
  const GpuUse use = take_until(watch, has_samples);
  EXPECT_EQ(use[kEnergyJ], 8 * *use[kSamples]);
  EXPECT_EQ(use[kNvlinkBytes], 8 * 1024 * *use[kSamples]);
  EXPECT_EQ(use[kPowerW], 107.5);
  EXPECT_EQ(use[kXids], 0);
}

TEST(GpuWatch, WarnsOnceWithRankHostAndGpu) {
  testing::internal::CaptureStderr();
  {
    std::atomic<int> xids = 0;
    GpuWatch::Options counting = options("2");
    counting.on_xid = [&] { ++xids; };
    GpuWatch hot(options("1")), broken(counting), bad(options("5"));
    take_until(hot, has_samples);
    take_until(hot, has_samples);
    take_until(broken, [](const GpuUse& use) { return use[kXids] > 1.0; });
    EXPECT_EQ(xids, 2);
    EXPECT_EQ(take_until(bad, [](const GpuUse& use) { return use[kEccErrors] > 0.0; })[kEccErrors],
              2);
    take_until(bad, has_samples);
  }
  std::string lines = testing::internal::GetCapturedStderr();
  for (const char* line :
       {"10:00.0: its clock is held down by software power cap, hardware slowdown, software "
        "thermal "
        "slowdown, hardware thermal slowdown, hardware power brake\n",
        "20:00.0: the driver reports Xid 79; NVIDIA's Xid catalog says what to do\n",
        "50:00.0: an ECC error of its memory was not corrected\n"}) {
    const std::string whole = std::string("tandem: rank 3 on node1, GPU 00000000:") + line;
    const size_t place = lines.find(whole);
    ASSERT_NE(place, std::string::npos) << lines;
    lines.erase(place, whole.size());
  }
  EXPECT_EQ(lines, "");
}

TEST(GpuWatch, NoLibraryIsSaidByTheOneWhoShallSayIt) {
  for (const bool says : {true, false}) {
    testing::internal::CaptureStderr();
    GpuWatch::Options missing = options("0");
    missing.nvml = "/nowhere/libnvidia-ml.so.1";
    missing.says_why_not = says;
    {
      GpuWatch watch(missing);
      while (watch.take()) {
        std::this_thread::yield();
      }
    }
    const std::string lines = testing::internal::GetCapturedStderr();
    EXPECT_EQ(lines.starts_with("tandem: rank 3 on node1, GPU 0: no figures: /nowhere/"), says);
    EXPECT_EQ(lines.empty(), !says);
  }
}

// The thread hangs for as long as the watch is there: what returns does not wait for it.
TEST(GpuWatch, LeavesALibraryThatHangs) {
  testing::internal::CaptureStderr();
  std::string lines;
  {
    GpuWatch watch(options("00000000:60:00.0"));
    std::optional<GpuUse> use;
    while (lines.empty()) {
      use = watch.take();
      ASSERT_TRUE(use);
      EXPECT_EQ((*use)[kSamples], 0);
      lines = testing::internal::GetCapturedStderr();
      testing::internal::CaptureStderr();
    }
    watch.take();
  }
  EXPECT_TRUE(lines.starts_with(
      "tandem: rank 3 on node1, GPU 00000000:60:00.0: NVML has not answered for "))
      << lines;
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  void* library = dlopen(STAND_IN, RTLD_NOW);
  reinterpret_cast<void (*)()>(dlsym(library, "stand_in_end_hanging"))();
}

TEST(WatchGpu, OnACpuOnlyForAStandIn) {
  ASSERT_EQ(unsetenv("TANDEM_NVML"), 0);
  ASSERT_EQ(setenv("CUDA_VISIBLE_DEVICES", "7,2,0", 1), 0);
  EXPECT_EQ(watch_gpu(1, Device::kCpu, 4, 2, "node1"), nullptr);
  ASSERT_EQ(setenv("TANDEM_NVML", STAND_IN, 1), 0);
  EXPECT_EQ(watch_gpu(0, Device::kCpu, 4, 2, "node1"), nullptr);
  const auto power = [](int local_rank) {
    return take_until(*watch_gpu(0.001, Device::kCpu, 4, local_rank, "node1"),
                      has_samples)[kPowerW];
  };
  EXPECT_EQ(power(0), 107.5);
  EXPECT_EQ(power(2), 100.5);
  ASSERT_EQ(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
  EXPECT_EQ(power(4), 104.5);
}

}  // namespace
}  // namespace tandem
