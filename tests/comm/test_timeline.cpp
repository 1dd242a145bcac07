#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <thread>

#include "src/trace/timeline.h"

namespace tandem::testing {
namespace {

double of(const Timeline& timeline, Part part) {
  return timeline.seconds()[static_cast<size_t>(part)];
}

double together(const Timeline& timeline) {
  const PartSeconds seconds = timeline.seconds();
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

// A GPU's stream whose clock only the test moves.
class OnGpu : public ::testing::Test {
 protected:
  Stream compute_ = Stream::dry(Device::kCuda, {}), other_ = Stream::dry(Device::kCuda, {});
  Timeline timeline_;
};

TEST_F(OnGpu, EveryMomentBelongsToOnePart) {
  compute_.clock().advance(100);  // before the timeline begins
  timeline_.enter(compute_, Part::kCompute);
  compute_.clock().advance(1);
  EXPECT_EQ(timeline_.enter(compute_, Part::kOptimizer), Part::kCompute);
  compute_.clock().advance(2);
  EXPECT_EQ(timeline_.enter(compute_, Part::kCompute), Part::kOptimizer);
  compute_.clock().advance(4);
  timeline_.enter(compute_, Part::kCompute);
  EXPECT_EQ(of(timeline_, Part::kCompute), 5);
  EXPECT_EQ(of(timeline_, Part::kOptimizer), 2);
  EXPECT_EQ(together(timeline_), 7);
}

TEST_F(OnGpu, OnlyWhatNothingHidesIsCommunication) {
  timeline_.enter(compute_, Part::kCompute);
  other_.clock().advance(5);
  compute_.clock().advance(3);
  timeline_.wait(compute_, other_.record());
  timeline_.wait(compute_, other_.record());  // reached already
  compute_.clock().advance(1);
  timeline_.enter(compute_, Part::kCompute);
  EXPECT_EQ(of(timeline_, Part::kCommunication), 2);
  EXPECT_EQ(of(timeline_, Part::kCompute), 4);
}

TEST_F(OnGpu, GoesOnWhereItWasTaken) {
  timeline_.enter(compute_, Part::kData);
  compute_.clock().advance(1);
  const Timeline first = timeline_.take(compute_);
  compute_.clock().advance(2);
  const Timeline second = timeline_.take(compute_);
  EXPECT_EQ(of(first, Part::kData), 1);
  EXPECT_EQ(of(second, Part::kData), 2);
  EXPECT_EQ(together(timeline_), 0);
}

TEST_F(OnGpu, PartsInsideSavingBelongToIt) {
  timeline_.enter(compute_, Part::kCompute);
  const int result = timeline_.during(compute_, Part::kSaving, [&] {
    compute_.clock().advance(1);
    other_.clock().advance(3);
    timeline_.wait(compute_, other_.record());
    return 7;
  });
  compute_.clock().advance(1);
  timeline_.enter(compute_, Part::kCompute);
  EXPECT_EQ(result, 7);
  EXPECT_EQ(of(timeline_, Part::kSaving), 3);
  EXPECT_EQ(of(timeline_, Part::kCompute), 1);
}

TEST_F(OnGpu, APartEndsWithAnException) {
  timeline_.enter(compute_, Part::kCompute);
  EXPECT_THROW(timeline_.during(compute_, Part::kSaving, [] { throw std::runtime_error("full"); }),
               std::runtime_error);
  EXPECT_EQ(timeline_.enter(compute_, Part::kCompute), Part::kCompute);
}

TEST(OnCpu, PartsAddUpToTheTimeOfTheHost) {
  using namespace std::chrono_literals;
  Stream compute = Stream::compute(Device::kCpu);
  Timeline timeline;
  const auto before = Timeline::Clock::now();
  timeline.enter(compute, Part::kCompute);
  const auto begin = Timeline::Clock::now();
  timeline.during(compute, Part::kData, [] { std::this_thread::sleep_for(20ms); });
  std::this_thread::sleep_for(10ms);
  const auto end = Timeline::Clock::now();
  const Timeline taken = timeline.take(compute);
  const auto after = Timeline::Clock::now();
  EXPECT_GE(of(taken, Part::kData), 0.02);
  EXPECT_GE(of(taken, Part::kCompute), 0.01);
  EXPECT_EQ(of(taken, Part::kCommunication), 0);
  // The sum of three parts is rounded twice, relative to less than a minute.
  EXPECT_GE(together(taken), std::chrono::duration<double>(end - begin).count() - 1e-13);
  EXPECT_LE(together(taken), std::chrono::duration<double>(after - before).count() + 1e-13);
}

}  // namespace
}  // namespace tandem::testing
