// Runs on every rank of a job of 1 to 4 ranks (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <regex>
#include <thread>

#include "comm/link_probe.h"
#include "src/device/ranks/agreement.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;

std::vector<LinkSample> line(double latency_s, double bytes_per_s) {
  std::vector<LinkSample> samples;
  for (int64_t bytes = 4 << 10; bytes <= 4 * kMiB; bytes *= 4) {
    samples.push_back({bytes, latency_s + static_cast<double>(bytes) / bytes_per_s});
  }
  return samples;
}

TEST(LinkFit, FindsTheLineThatSamplesLieOn) {
  for (double latency : {1e-6, 1e-4, 1e-2}) {
    for (double rate : {1e6, 1e9, 1e12}) {
      const auto samples = line(latency, rate);
      const Link rates = fit_link(samples);
      // Sizes differ by 4^5, so the determinant is more than half of xx * yy, and a few dozen
      // roundings of 1e-16 stay below 1e-13, relative to each sample's time, as in the fit.
      for (const LinkSample& sample : samples) {
        const double seconds =
            rates.latency_s + static_cast<double>(sample.bytes) / rates.bytes_per_s;
        EXPECT_NEAR(seconds / sample.seconds, 1, 1e-13) << latency << " s, " << rate << " bytes/s";
      }
    }
  }
}

TEST(LinkFit, NoiseOfTenPercentMovesTheRatesByTwentyAtMost) {
  // Every combination of samples that are too fast and too slow. The fit claims to amplify the
  // worst error at most twice for six sizes, from mostly latency to mostly transfer.
  const auto exact = line(1e-3, 20e6);
  for (int slow = 0; slow < 1 << exact.size(); ++slow) {
    auto samples = exact;
    for (size_t i = 0; i < samples.size(); ++i) {
      samples[i].seconds *= slow >> i & 1 ? 1.1 : 0.9;
    }
    const Link rates = fit_link(samples);
    EXPECT_NEAR(rates.latency_s, 1e-3, 0.2e-3) << slow;
    EXPECT_NEAR(rates.bytes_per_s, 20e6, 0.2 * 20e6) << slow;
  }
}

TEST(LinkFit, NeitherLatencyNorTransferIsNegative) {
  const LinkSample superlinear[] = {{1000, 1e-6}, {2000, 4e-6}};
  EXPECT_EQ(fit_link(superlinear).latency_s, 0);
  EXPECT_GT(fit_link(superlinear).bytes_per_s, 0);
  const LinkSample shrinking[] = {{1000, 4e-6}, {2000, 2e-6}};
  EXPECT_EQ(fit_link(shrinking).bytes_per_s, kMostRate);
  EXPECT_GT(fit_link(shrinking).latency_s, 0);
}

TEST(LinkFit, OneSizeIsNotEnough) {
  const LinkSample same[] = {{1024, 0.5}, {1024, 0.5}};
  EXPECT_THROW(fit_link(same), Error);
}

Link probe(const Group& group, const Stream& compute) {
  return fit_link(sample_link(group, group.collectives(), kAllReduce, compute,
                              {.largest = 4 * kMiB, .budget_s = 1}));
}

// Two ranks in one process; the link between them sleeps.
class SleepingLink final : public Collectives {
 public:
  SleepingLink(double latency_s, double bytes_per_s) : rates_{latency_s, bytes_per_s} {}
  std::vector<int64_t> sizes;  // of the requested collectives

  int size() const override { return 2; }
  int rank() const override { return 0; }
  Stream& stream() override { return self_.stream(); }
  void all_reduce(const Tensor& inout, Traffic traffic) override {
    EXPECT_EQ(traffic, Traffic::kControl);
    sizes.push_back(inout.bytes());
    std::this_thread::sleep_for(std::chrono::duration<double>(
        rates_.latency_s + static_cast<double>(inout.bytes()) / rates_.bytes_per_s));
  }
  void reduce_scatter(const Tensor&, const Tensor&) override { refuse(); }
  void all_gather(const Tensor&, const Tensor&) override { refuse(); }
  void all_to_all_v(const Tensor&, std::span<const Range>, const Tensor&, std::span<const Range>,
                    int64_t) override {
    refuse();
  }
  std::unique_ptr<Collectives> split(std::span<const int>) override { refuse(); }
  void set_nodes(std::span<const int>) override {}
  WireCount wire() const override { return {}; }

 private:
  [[noreturn]] static void refuse() {
    fail(ExitCode::kInternal, "the probe needs all_reduce alone");
  }
  Link rates_;
  SelfCollectives self_;
};

Link probe(SleepingLink& link) {
  LocalControl control(0, 2);  // both ranks measure the same
  return probe({control, link, test_memory(), {0, 0}}, test_stream());
}

TEST(LinkProbe, FindsTheRatesOfALink) {
  SleepingLink link(2e-3, 100e6);
  const Link rates = probe(link);
  EXPECT_EQ(link.sizes.back(), 4 * kMiB);
  // A sleep never ends early. How late it ends depends on the load, so the other bound is wide.
  EXPECT_GT(rates.latency_s, 1.9e-3);
  EXPECT_LT(rates.latency_s, 20e-3);
  EXPECT_GT(rates.bytes_per_s, 10e6);
}

TEST(LinkProbe, LeavesOutSizesThatWouldTakeTooLong) {
  SleepingLink link(1e-3, 1e6);  // 6 x 256 KiB would take 1.6 s
  probe(link);
  EXPECT_LE(link.sizes.back(), 64 << 10);
}

TEST(LinkProbe, TakesTwoSizesHoweverSlowTheLink) {
  SleepingLink link(60e-3, 1e9);  // 6 x 60 ms and then 6 x 4 x 60 ms are more than a second
  probe(link);
  EXPECT_EQ(link.sizes.back(), 16 << 10);
}

// The message, or an empty text.
std::string refusal(SleepingLink& link, double least_gb_s) {
  LocalControl control(0, 2);
  try {
    require_bus_bandwidth({control, link, test_memory(), {0, 0}}, test_stream(), least_gb_s);
    return "";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
}

TEST(BusBandwidth, ThatIsTooLowIsRefusedWithBothFigures) {
  SleepingLink link(0, 10e9);  // at most, because a sleep never ends early
  const std::string said = refusal(link, 10);
  const std::regex expected(
      R"(.* all_reduce of 65536 KiB on 2 ranks is \d(\.\d+)? GB/s, less than dist.min_gb_s = 10; )"
      "likely causes: .*sockets.*placement group.*another job.*");
  EXPECT_TRUE(std::regex_match(said, expected)) << said;
  EXPECT_EQ(refusal(link, 1e-3), "");
}

TEST(BusBandwidth, IsMeasuredWithLessOnASlowLink) {
  SleepingLink link(1e-3, 2e6);
  const std::string said = refusal(link, 1);
  EXPECT_NE(said.find("all_reduce of 256 KiB"), std::string::npos) << said;
  EXPECT_EQ(link.sizes.size(), 2 * 6);  // 6 x 1 MiB would take 3.1 s more
}

TEST(BusBandwidth, OfOneRankIsNotMeasured) {
  OneRank alone;
  const Ranks ranks = alone;
  const Group group(ranks.control, ranks.collectives, test_memory(), {0});
  require_bus_bandwidth(group, test_stream(), 1e300);
  EXPECT_EQ(group.wire(), WireCount{});
}

TEST(LinkProbe, CountsTheSlowestRank) {
  const Ranks world = test_ranks();
  const Group ranks(world.control, world.collectives, test_memory(),
                    std::vector<int>(static_cast<size_t>(world.size()), 0));
  constexpr double kSlow_s = 20e-3;
  SleepingLink link(world.rank() == 0 ? kSlow_s : 0, kMostRate);
  for (const LinkSample& sample :
       sample_link(ranks, link, kAllReduce, test_stream(), {.largest = 16 << 10})) {
    EXPECT_GE(sample.seconds, kSlow_s);  // a sleep never ends early
  }
}

TEST(LinkProbe, AllRanksFindTheSame) {
  for_each_device([](Device device) {
    const Ranks world = test_ranks();
    const Group ranks(world.control, world.collectives, test_memory(device),
                      std::vector<int>(static_cast<size_t>(world.size()), 0));
    const int64_t payload = ranks.wire().payload().total();
    const Link rates = probe(ranks, test_stream(device));
    EXPECT_EQ(ranks.wire().payload().total(), payload);
    EXPECT_TRUE(std::isfinite(rates.latency_s));
    EXPECT_GT(rates.bytes_per_s, 0);
    std::string bits(sizeof rates, '\0');
    std::memcpy(bits.data(), &rates, sizeof rates);
    for (const std::string& other : world.control.all_gather(bits)) {
      EXPECT_EQ(other, bits);
    }
  });
}

}  // namespace
}  // namespace tandem::testing
