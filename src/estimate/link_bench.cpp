#include "src/estimate/link_bench.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <utility>

#include "src/core/error.h"

namespace tandem {

namespace {

using nlohmann::json;

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr int64_t kSmallest = 4 << 10, kGrowth = 4;
constexpr int kRepeats = 5;
constexpr const char* kFormat = "tandem links 1";

// The bytes that a rank sends in one pass.
double passed(int ranks, double bytes) { return bytes * (ranks - 1) / ranks; }

class Bench {
 public:
  Bench(const Mesh& mesh, const Stream& compute, int64_t largest)
      : mesh_(mesh),
        memory_(compute),
        array_(Tensor::zeros(memory_, {largest / size_of(DType::kF32)}, DType::kF32,
                             MemoryClass::kStaging)) {}

  MeasuredGroup measure(const char* scope, std::span<const int> colors) {
    const auto group = mesh_.data().collectives().split(colors);
    MeasuredGroup result{.scope = scope,
                         .ranks = group->size(),
                         .groups = static_cast<int>(std::ssize(colors)) / group->size()};
    for (int64_t bytes = kSmallest; bytes <= array_.bytes(); bytes *= kGrowth) {
      const int64_t n = bytes / size_of(DType::kF32) / group->size() * group->size();
      for (size_t kind = 0; kind < result.samples.size(); ++kind) {
        result.samples[kind].push_back({n * size_of(DType::kF32), typical(*group, kind, n)});
      }
    }
    return result;
  }

 private:
  double typical(Collectives& group, size_t kind, int64_t n) {
    seconds_of(group, kind, n);  // not counted: it connects the ranks
    std::array<double, kRepeats> seconds{};
    std::ranges::generate(seconds, [&] { return seconds_of(group, kind, n); });
    std::ranges::sort(seconds);
    return mesh_.job().sum({&seconds[kRepeats / 2], 1})[0] / mesh_.job().size();
  }

  double seconds_of(Collectives& group, size_t kind, int64_t n) {
    const Tensor whole = array_.slice(0, n);
    const int64_t shard = n / group.size();
    const Tensor own = whole.slice(group.rank() * shard, shard);
    mesh_.job().barrier();
    const auto begin = std::chrono::steady_clock::now();
    switch (kind) {
      case 0:
        group.all_reduce(whole);
        break;
      case 1:
        group.reduce_scatter(whole, own);
        break;
      default:
        group.all_gather(own, whole);
    }
    mesh_.data().wait(group.stream().record());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  const Mesh& mesh_;
  Memory memory_;
  Tensor array_;
};

// The sum of squared relative errors.
double error_of(const LinkRates& line, std::span<const LinkSample> samples) {
  double sum = 0;
  for (const LinkSample& sample : samples) {
    const double seconds = line.latency_s + static_cast<double>(sample.bytes) / line.bytes_per_s;
    const double error = seconds / sample.seconds - 1;
    sum += error * error;
  }
  return sum;
}

// A rate is null if the size made no difference.
json rate_json(double bytes_per_s) {
  return bytes_per_s == kInfinite ? json() : json(bytes_per_s / 1e9);
}

json link_json(const Link& link) {
  json text = {{"latency_us", link.latency_s * 1e6}, {"gb_s", rate_json(link.bytes_per_s)}};
  if (link.short_below > 0) {
    text["short"] = {{"below_bytes", link.short_below},
                     {"latency_us", link.short_latency_s * 1e6},
                     {"gb_s", rate_json(link.short_bytes_per_s)}};
  }
  return text;
}

void expect(bool ok, const char* what) {
  if (!ok) {
    throw std::invalid_argument(what);
  }
}

double not_negative(double value) {
  expect(value >= 0, "a figure is negative");
  return value;
}

double rate_from(const json& value) {
  if (value.is_null()) {
    return kInfinite;
  }
  expect(value.get<double>() > 0, "a rate is not more than 0");
  return value.get<double>() * 1e9;
}

std::optional<Link> link_from(const json& network, const char* name) {
  if (!network.contains(name)) {
    return std::nullopt;
  }
  const json& text = network.at(name);
  Link link{.latency_s = not_negative(text.at("latency_us")) / 1e6,
            .bytes_per_s = rate_from(text.at("gb_s"))};
  if (text.contains("short")) {
    const json& part = text.at("short");
    link.short_below = not_negative(part.at("below_bytes"));
    link.short_latency_s = not_negative(part.at("latency_us")) / 1e6;
    link.short_bytes_per_s = rate_from(part.at("gb_s"));
  }
  return link;
}

}  // namespace

double bus_gb_s(const CollectiveKind& kind, int ranks, const LinkSample& sample) {
  return kind.passes * passed(ranks, static_cast<double>(sample.bytes)) / sample.seconds / 1e9;
}

std::vector<MeasuredGroup> measure_links(const Mesh& mesh, const std::vector<int>& node_of_rank,
                                         const Stream& compute, int64_t largest) {
  const int ranks = mesh.job().size(), nodes = std::ranges::max(node_of_rank) + 1;
  const int node_size = ranks / nodes;
  if (ranks == 1) {
    fail(ExitCode::kConfig, "bench links: 1 rank has no links; start it under mpirun -np N");
  }
  std::vector<int> place(node_of_rank.size()), count(static_cast<size_t>(nodes), 0);
  for (size_t r = 0; r < place.size(); ++r) {
    place[r] = count[static_cast<size_t>(node_of_rank[r])]++;
  }
  if (std::ranges::count(count, node_size) != nodes) {
    fail(ExitCode::kConfig,
         "bench links: nodes have different numbers of ranks; start equally "
         "many on each");
  }
  Bench bench(mesh, compute, largest);
  std::vector<MeasuredGroup> groups;
  if (node_size > 1) {
    groups.push_back(bench.measure("inside", node_of_rank));
  }
  if (nodes > 1) {
    groups.push_back(bench.measure("between", place));
  }
  if (groups.size() > 1) {
    groups.push_back(bench.measure("all", std::vector<int>(node_of_rank.size(), 0)));
  }
  return groups;
}

Link fit_two_lines(std::vector<LinkSample> samples) {
  std::ranges::stable_sort(samples, {}, &LinkSample::bytes);
  std::vector<size_t> starts;  // of each size
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i == 0 || samples[i].bytes != samples[i - 1].bytes) {
      starts.push_back(i);
    }
  }
  const std::span<const LinkSample> all(samples);
  const LinkRates one = fit_link(all);
  Link best{.latency_s = one.latency_s, .bytes_per_s = one.bytes_per_s};
  double least = error_of(one, all);
  for (size_t size = 2; size + 2 <= starts.size(); ++size) {
    const size_t cut = starts[size];
    const auto below = all.first(cut), above = all.subspan(cut);
    const LinkRates low = fit_link(below), high = fit_link(above);
    if (const double error = error_of(low, below) + error_of(high, above); error < least) {
      least = error;
      best = {.latency_s = high.latency_s,
              .bytes_per_s = high.bytes_per_s,
              .short_below = static_cast<double>(samples[cut].bytes),
              .short_latency_s = low.latency_s,
              .short_bytes_per_s = low.bytes_per_s};
    }
  }
  return best;
}

Link link_of(const MeasuredGroup& group) {
  // The groups between nodes share the links of nodes, those inside nodes share none.
  const int sharing = group.scope == "between" ? group.groups : 1;
  std::vector<LinkSample> passes;
  for (size_t kind = 0; kind < group.samples.size(); ++kind) {
    for (const LinkSample& sample : group.samples[kind]) {
      passes.push_back(
          {static_cast<int64_t>(sharing * passed(group.ranks, static_cast<double>(sample.bytes))),
           sample.seconds / kMeasuredCollectives[kind].passes});
    }
  }
  Link link = fit_two_lines(std::move(passes));
  link.latency_s /= group.ranks - 1;  // a pass goes over that many links
  link.short_latency_s /= group.ranks - 1;
  return link;
}

MeasuredMachine machine_of(const std::vector<MeasuredGroup>& groups) {
  MeasuredMachine machine;
  for (const MeasuredGroup& group : groups) {
    if (group.scope != "all") {
      (group.scope == "inside" ? machine.inside : machine.between) = link_of(group);
    }
  }
  return machine;
}

std::string machine_text(const std::vector<MeasuredGroup>& groups, const std::string& about) {
  json text = {{"format", kFormat},
               {"measured", about},
               {"network", json::object()},
               {"groups", json::array()}};
  const MeasuredMachine machine = machine_of(groups);
  if (machine.inside) {
    text["network"]["inside"] = link_json(*machine.inside);
  }
  if (machine.between) {
    text["network"]["between"] = link_json(*machine.between);
  }
  for (const MeasuredGroup& group : groups) {
    json one = {{"scope", group.scope}, {"ranks", group.ranks}, {"groups", group.groups}};
    for (size_t kind = 0; kind < group.samples.size(); ++kind) {
      json& collective = one["collectives"][kMeasuredCollectives[kind].name];
      collective["fit"] = link_json(fit_two_lines(group.samples[kind]));
      for (const LinkSample& sample : group.samples[kind]) {
        collective["samples"].push_back(
            {{"bytes", sample.bytes},
             {"seconds", sample.seconds},
             {"algorithm_gb_s", static_cast<double>(sample.bytes) / sample.seconds / 1e9},
             {"bus_gb_s", bus_gb_s(kMeasuredCollectives[kind], group.ranks, sample)}});
      }
    }
    text["groups"].push_back(one);
  }
  return text.dump(1) + "\n";
}

MeasuredMachine machine_from_text(const std::string& text, const std::string& path) {
  try {
    const json machine = json::parse(text);
    expect(machine.at("format") == kFormat, "it has another format");
    const json& network = machine.at("network");
    return {.inside = link_from(network, "inside"), .between = link_from(network, "between")};
  } catch (const json::parse_error&) {  // its text may quote any bytes
    fail(ExitCode::kData, str(path, ": no file of `tandem bench links --output`: no JSON"));
  } catch (const std::exception& error) {
    fail(ExitCode::kData, str(path, ": no file of `tandem bench links --output`: ", error.what()));
  }
}

}  // namespace tandem
