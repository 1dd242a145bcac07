#include <gtest/gtest.h>

#include <numeric>
#include <span>
#include <stdexcept>
#include <thread>

#include "src/core/error.h"
#include "src/trace/timeline.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

double of(const Timeline& timeline, Phase phase) {
  return timeline.seconds()[static_cast<size_t>(phase)];
}

double together(const Timeline& timeline) {
  const PhaseSeconds seconds = timeline.seconds();
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
  timeline_.enter(compute_, Phase::kCompute);
  compute_.clock().advance(1);
  EXPECT_EQ(timeline_.enter(compute_, Phase::kOptimizer), Phase::kCompute);
  compute_.clock().advance(2);
  EXPECT_EQ(timeline_.enter(compute_, Phase::kCompute), Phase::kOptimizer);
  compute_.clock().advance(4);
  timeline_.enter(compute_, Phase::kCompute);
  EXPECT_EQ(of(timeline_, Phase::kCompute), 5);
  EXPECT_EQ(of(timeline_, Phase::kOptimizer), 2);
  EXPECT_EQ(together(timeline_), 7);
}

TEST_F(OnGpu, OnlyWhatNothingHidesIsCommunication) {
  timeline_.enter(compute_, Phase::kCompute);
  other_.clock().advance(5);
  compute_.clock().advance(3);
  timeline_.wait(compute_, other_.record());
  timeline_.wait(compute_, other_.record());  // reached already
  compute_.clock().advance(1);
  timeline_.enter(compute_, Phase::kCompute);
  EXPECT_EQ(of(timeline_, Phase::kCommunication), 2);
  EXPECT_EQ(of(timeline_, Phase::kCompute), 4);
}

TEST_F(OnGpu, GoesOnWhereItWasTaken) {
  timeline_.enter(compute_, Phase::kData);
  compute_.clock().advance(1);
  const Timeline first = timeline_.take(compute_);
  compute_.clock().advance(2);
  const Timeline second = timeline_.take(compute_);
  EXPECT_EQ(of(first, Phase::kData), 1);
  EXPECT_EQ(of(second, Phase::kData), 2);
  EXPECT_EQ(together(timeline_), 0);
}

TEST_F(OnGpu, ARangeNamesWhatFollows) {
  timeline_.enter(compute_, Phase::kOptimizer);
  timeline_.enter_range(compute_, "update");
  compute_.clock().advance(1);
  timeline_.enter_range(compute_, "");
  compute_.clock().advance(2);
  const Timeline taken = timeline_.take(compute_);
  ASSERT_EQ(taken.marks().size(), 4u);
  EXPECT_EQ(taken.marks()[1].range, "update");
  EXPECT_EQ(taken.marks()[2].range, "");
  EXPECT_EQ(taken.marks()[2].seconds_since(taken.marks()[1]), 1);
  EXPECT_EQ(of(taken, Phase::kOptimizer), 3);
}

// The graph takes 10 s of the stream, and 6 s lie between its first stamp and its last one.
TEST_F(OnGpu, AGraphHasAClockOfItsOwn) {
  Timeline graph(Tensor::zeros(test_memory(), {3}, DType::kI64, MemoryClass::kData));
  graph.enter(compute_, Phase::kCompute);
  graph.enter(compute_, Phase::kOptimizer);
  graph.enter(compute_, Phase::kCompute);
  EXPECT_THROW(graph.enter(compute_, Phase::kCompute), Error);  // there is no fourth stamp
  timeline_.enter(compute_, Phase::kData);
  for (const int64_t start : {5, 100}) {
    compute_.clock().advance(1);
    timeline_.enter(compute_, Phase::kCompute);
    compute_.clock().advance(10);
    const std::vector<int64_t> stamps = {start * 1'000'000'000, (start + 2) * 1'000'000'000,
                                         (start + 6) * 1'000'000'000};
    timeline_.append(graph, Tensor::of(std::as_bytes(std::span(stamps)), test_memory(), {3},
                                       DType::kI64, MemoryClass::kData));
    timeline_.enter(compute_, Phase::kData);
  }
  EXPECT_EQ(of(timeline_, Phase::kData), 2);
  EXPECT_EQ(of(timeline_, Phase::kOptimizer), 2 * 4);
  EXPECT_EQ(of(timeline_, Phase::kCompute), 2 * (2 + 4));
  EXPECT_EQ(together(timeline_), 22);
}

// The stream has work for as long as the host waits, and in the second turn none for 5 s.
TEST_F(OnGpu, AWaitOfTheHostCountsWhileTheStreamHasNoWork) {
  using namespace std::chrono_literals;
  timeline_.enter(compute_, Phase::kCompute);
  for (const double idle_s : {0, 5}) {
    timeline_.during(
        compute_, Phase::kData, [] { std::this_thread::sleep_for(20ms); }, true);
    compute_.clock().advance(idle_s);
    timeline_.enter(compute_, Phase::kCompute);
    EXPECT_EQ(of(timeline_, Phase::kData) >= 0.02, idle_s > 0);
    EXPECT_EQ(of(timeline_, Phase::kData) > 0, idle_s > 0);
  }
}

TEST_F(OnGpu, PartsInsideSavingBelongToIt) {
  timeline_.enter(compute_, Phase::kCompute);
  const int result = timeline_.during(compute_, Phase::kSaving, [&] {
    compute_.clock().advance(1);
    other_.clock().advance(3);
    timeline_.wait(compute_, other_.record());
    return 7;
  });
  compute_.clock().advance(1);
  timeline_.enter(compute_, Phase::kCompute);
  EXPECT_EQ(result, 7);
  EXPECT_EQ(of(timeline_, Phase::kSaving), 3);
  EXPECT_EQ(of(timeline_, Phase::kCompute), 1);
}

TEST_F(OnGpu, APartEndsWithAnException) {
  timeline_.enter(compute_, Phase::kCompute);
  EXPECT_THROW(timeline_.during(compute_, Phase::kSaving, [] { throw std::runtime_error("full"); }),
               std::runtime_error);
  EXPECT_EQ(timeline_.enter(compute_, Phase::kCompute), Phase::kCompute);
}

TEST(OnCpu, PartsAddUpToTheTimeOfTheHost) {
  using namespace std::chrono_literals;
  Stream compute = Stream::compute(Device::kCpu);
  Timeline timeline;
  const auto before = Timeline::Clock::now();
  timeline.enter(compute, Phase::kCompute);
  const auto begin = Timeline::Clock::now();
  timeline.during(compute, Phase::kData, [] { std::this_thread::sleep_for(20ms); });
  std::this_thread::sleep_for(10ms);
  const auto end = Timeline::Clock::now();
  const Timeline taken = timeline.take(compute);
  const auto after = Timeline::Clock::now();
  EXPECT_GE(of(taken, Phase::kData), 0.02);
  EXPECT_GE(of(taken, Phase::kCompute), 0.01);
  EXPECT_EQ(of(taken, Phase::kCommunication), 0);
  // The sum of three parts is rounded twice, relative to less than a minute.
  EXPECT_GE(together(taken), std::chrono::duration<double>(end - begin).count() - 1e-13);
  EXPECT_LE(together(taken), std::chrono::duration<double>(after - before).count() + 1e-13);
}

}  // namespace
}  // namespace tandem::testing
