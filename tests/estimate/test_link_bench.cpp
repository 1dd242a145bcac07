#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/estimate/link_bench.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;
// Two lines that meet between 16 and 64 KiB, and all figures powers of two, so that nothing is
// rounded before the fit.
constexpr Link kLink{.latency_s = 0x1p-10,
                     .bytes_per_s = 0x1p30,
                     .short_below = 32 << 10,
                     .short_latency_s = 0x1p-16,
                     .short_bytes_per_s = 0x1p24,
                     .all_to_all = 1.5};

double seconds(const Link& link, double bytes) {
  return link.latency(bytes) + bytes / link.rate(bytes);
}

// A fit of n samples makes some ten roundings for each, of 1e-16 each; the determinant of its
// equations is more than a hundredth of their terms where sizes differ by 4 or more.
constexpr double kTolerance = 1e-12;

void expect_same(const Link& fitted, const Link& link, std::span<const LinkSample> samples) {
  for (const LinkSample& sample : samples) {
    const auto bytes = static_cast<double>(sample.bytes);
    EXPECT_NEAR(seconds(fitted, bytes) / seconds(link, bytes), 1, kTolerance) << bytes;
  }
}

TEST(TwoLines, AreFoundWhereTheyMeet) {
  std::vector<LinkSample> samples;
  for (int64_t bytes = 256 * kMiB; bytes >= 4 << 10; bytes /= 4) {  // in no order that helps
    samples.push_back({bytes, seconds(kLink, static_cast<double>(bytes))});
  }
  const Link fitted = fit_two_lines(samples);
  EXPECT_EQ(fitted.short_below, 64 << 10);  // the first long sample
  expect_same(fitted, kLink, samples);
}

TEST(TwoLines, NeedTwoSizesEach) {
  const Link three = fit_two_lines({{1024, 1}, {2048, 5}, {4096, 5}});
  EXPECT_EQ(three.short_below, 0);
  const Link two = fit_two_lines({{1024, 1}, {2048, 2}});
  EXPECT_NEAR(two.latency_s, 0, kTolerance);
  EXPECT_NEAR(two.bytes_per_s / 1024, 1, kTolerance);
}

// Collectives that take exactly the time of the model show its links.
TEST(MeasuredMachine, HasTheLinksOfTheModel) {
  constexpr int kNodes = 4, kNodeSize = 2;
  const Network network{.inside = {.latency_s = 0x1p-18, .bytes_per_s = 0x1p33}, .between = kLink};
  DryCollectives world(0, kNodes * kNodeSize, Device::kCpu, {}, network);
  std::vector<int> node, place;
  for (int r = 0; r < world.size(); ++r) {
    node.push_back(r / kNodeSize);
    place.push_back(r % kNodeSize);
  }
  world.set_nodes(node);
  const Stream stream = Stream::dry(Device::kCpu, {});
  Memory memory(stream);
  const auto measure = [&](const char* scope, const std::vector<int>& colors) {
    const auto group = world.split(colors);
    MeasuredGroup measured{
        .scope = scope, .ranks = group->size(), .groups = world.size() / group->size()};
    for (int64_t bytes = 4 << 10; bytes <= 256 * kMiB; bytes *= 4) {
      const Tensor whole = Tensor::empty(memory, {bytes / 4}, DType::kF32, MemoryClass::kStaging);
      const Tensor other = Tensor::empty(memory, whole.shape(), DType::kF32, MemoryClass::kStaging);
      const Tensor own = whole.slice(0, bytes / 4 / group->size());
      const auto time = [&](size_t kind, auto collective) {
        const double before = world.stream().clock().now_s;
        collective();
        measured.samples[kind].push_back({bytes, world.stream().clock().now_s - before});
      };
      time(0, [&] { group->all_reduce(whole, Traffic::kAllReduce); });
      time(1, [&] { group->reduce_scatter(whole, own); });
      time(2, [&] { group->all_gather(own, whole); });
      time(3, [&] { group->all_to_all(whole, other); });
    }
    return measured;
  };
  std::vector<MeasuredGroup> groups = {measure("inside", node), measure("between", place)};
  const std::string text = machine_text(groups, "a model");
  const MeasuredMachine machine = machine_from_text(text, "machine.json");
  ASSERT_TRUE(machine.inside && machine.between);
  // The clock that samples are read from adds up seconds, so each has a rounding of 1e-16 of their
  // sum, about 4 s; the shortest sample takes 2^-18 s.
  for (double size = 4 << 10; size <= 256 * kMiB;
       size *= 4) {  // what passes a link of each group in a pass
    const double inside = size / 2, between = size * 3 / 4 * kNodeSize;
    EXPECT_NEAR(seconds(*machine.inside, inside) / seconds(network.inside, inside), 1, 1e-8)
        << size;
    EXPECT_NEAR(seconds(*machine.between, between) / seconds(network.between, between), 1, 1e-8)
        << size;
  }
  EXPECT_NEAR(machine.inside->all_to_all, 1, 1e-8);
  EXPECT_NEAR(machine.between->all_to_all, kLink.all_to_all, 1e-8);
  // On a slow link there may be time for two sizes only, and short messages say nothing of others.
  groups[1].samples[kAllToAll].resize(2);
  EXPECT_EQ(machine_from_text(machine_text(groups, "a model"), "").between->all_to_all, 1);
}

TEST(MeasuredMachine, IsReadBackFromItsText) {
  MeasuredGroup group{.scope = "between", .ranks = 2, .groups = 1};
  for (auto& samples : group.samples) {
    samples = {{1024, 1}, {2048, 1}};  // the size makes no difference
  }
  const MeasuredMachine machine = machine_from_text(machine_text({group}, "flat"), "machine.json");
  EXPECT_FALSE(machine.inside);
  EXPECT_EQ(machine.between->bytes_per_s, kMostRate);
}

TEST(MeasuredMachine, AnotherFileIsRefused) {
  for (const char* text :
       {"", "{}", "[]", R"({"format": "tandem links 1"})",
        R"({"format": "tandem links 2", "network": {}})",
        R"({"format": "tandem links 1", "network": {"inside": {"latency_us": -1, "gb_s": 1}}})",
        R"({"format": "tandem links 1", "network": {"inside": {"latency_us": 1, "gb_s": 0}}})",
        R"({"format": "tandem links 1", "network": {"inside": {"latency_us": 1, "gb_s": 1e400}}})",
        R"({"format": "tandem links 1", "network": {"inside": {"latency_us": 1}}})"}) {
    try {
      machine_from_text(text, "m.json");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_TRUE(std::string(error.what())
                      .starts_with("m.json: no file of `tandem bench links --output`: "))
          << error.what();
    }
  }
}

// A file as `bench links` writes it, in which one figure is another.
std::string changed(const std::string& where, const nlohmann::json& value) {
  MeasuredGroup group{.scope = "inside", .ranks = 2, .groups = 1};
  for (auto& samples : group.samples) {
    samples = {{1024, 1}, {2048, 1.5}};
  }
  auto text = nlohmann::json::parse(machine_text({group}, "two ranks"));
  text[nlohmann::json::json_pointer(where)] = value;
  return text.dump();
}

TEST(MeasuredMachine, AnErrorNamesTheKeyAndWhatItMayBe) {
  const std::string rate = " must be a number from 1e-06 to 1e+06, not ";
  const std::string at = "/groups/0/collectives/all_gather/",
                    key = "groups.0.collectives.all_gather.";
  for (const auto& [where, value, said] : std::vector<std::array<nlohmann::json, 3>>{
           {"/network/inside/gb_s", nullptr, "network.inside.gb_s" + rate + "null"},
           {"/network/inside/gb_s", 1e-300, "network.inside.gb_s" + rate + "1e-300"},
           {"/network/inside/gb_s", 1e300, "network.inside.gb_s" + rate + "1e+300"},
           {"/network/inside/gb_s", "\x1b[2J", "network.inside.gb_s" + rate + "string"},
           {"/network/inside/latency_us", 1e300,
            "network.inside.latency_us must be a number from 0 to 1e+09, not 1e+300"},
           {"/network/inside/short", {{"gb_s", 1}}, "network.inside.short.below_bytes is missing"},
           {"/network/inside/short",
            {{"below_bytes", 1}, {"gb_s", 1}},
            "network.inside.short.latency_us is missing"},
           {"/network/inside/short",
            {{"below_bytes", -1}},
            "network.inside.short.below_bytes must be a number from 0 to 1e+15, not -1"},
           {"/network/inside/short", 1, "network.inside.short.below_bytes is missing"},
           {"/network/inside", 1, "network.inside.latency_us is missing"},
           {"/network", 1, "network must be an object"},
           {"/groups", 1, "groups a list"},
           {"/groups/0/ranks", 1, "groups.0.ranks must be a number from 2 to 1e+06, not 1"},
           {at + "fit/gb_s", nullptr, key + "fit.gb_s" + rate + "null"},
           {at + "samples/1/bytes", 0, key + "samples.1.bytes must be a number from 1"},
           {at + "samples/1/seconds", nlohmann::json::object(),
            key + "samples.1.seconds must be a number from 1e-12 to 1000, not object"}}) {
    SCOPED_TRACE(where.get<std::string>());
    expect_error(ExitCode::kData,
                 {"m.json: no file of `tandem bench links --output`: ", said.get<std::string>()},
                 [&, &where = where, &value = value] {
                   machine_from_text(changed(where.get<std::string>(), value), "m.json");
                 });
  }
  machine_from_text(changed("/measured", "by hand"), "m.json");
  std::string deep = "1";
  for (int i = 0; i < 1000; ++i) {
    deep = "[" + deep + "]";
  }
  expect_error(ExitCode::kData, {"nested too deeply"}, [&] {
    machine_from_text(changed("/measured", nlohmann::json::parse(deep)), "m.json");
  });
}

TEST(MeasuredMachine, ItsLimitsAreAllowed) {
  const auto link = [](const char* figures) {
    return machine_from_text(
               str(R"({"format": "tandem links 1", "network": {"inside": {)", figures, "}}}"), "m")
        .inside.value();
  };
  EXPECT_EQ(link(R"("latency_us": 0, "gb_s": 1e6)").bytes_per_s, kMostRate);
  const Link slow = link(R"("latency_us": 1e9, "gb_s": 1e-6)");
  EXPECT_EQ(slow.latency_s, 1000);
  EXPECT_DOUBLE_EQ(slow.bytes_per_s, 1000);
}

TEST(BusBandwidth, IsThatOfNcclTests) {
  EXPECT_EQ(bus_gb_s(kMeasuredCollectives[0], 4, {.bytes = 1 << 30, .seconds = 1}),
            1.5 * (1 << 30) / 1e9);
  EXPECT_EQ(bus_gb_s(kMeasuredCollectives[1], 4, {.bytes = 1 << 30, .seconds = 1}),
            0.75 * (1 << 30) / 1e9);
}

}  // namespace
}  // namespace tandem::testing
