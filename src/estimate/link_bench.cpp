#include "src/estimate/link_bench.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <utility>

#include "src/core/error.h"

namespace tandem {

namespace {

using nlohmann::json;

constexpr const char* kFormat = "tandem links 1";

// The sum of squared relative errors.
double error_of(const Link& line, std::span<const LinkSample> samples) {
  double sum = 0;
  for (const LinkSample& sample : samples) {
    const double seconds = line.latency_s + static_cast<double>(sample.bytes) / line.bytes_per_s;
    const double error = seconds / sample.seconds - 1;
    sum += error * error;
  }
  return sum;
}

json link_json(const Link& link) {
  json text = {{"latency_us", link.latency_s * 1e6}, {"gb_s", link.bytes_per_s / 1e9}};
  if (link.short_below > 0) {
    text["short"] = {{"below_bytes", link.short_below},
                     {"latency_us", link.short_latency_s * 1e6},
                     {"gb_s", link.short_bytes_per_s / 1e9}};
  }
  if (link.all_to_all != 1) {
    text["all_to_all_times"] = link.all_to_all;
  }
  return text;
}

void expect(bool ok, const std::string& what) {
  if (!ok) {
    throw std::invalid_argument(what);
  }
}

// Every figure of a file, and what it may be.
constexpr struct {
  std::string_view key;
  double least, most;
} kFigures[] = {{"latency_us", 0, 1e9},
                {"gb_s", 1e-6, kMostRate / 1e9},
                {"below_bytes", 0, 1e15},
                {"ranks", 2, 1e6},
                {"bytes", 1, 1e15},
                {"seconds", 1e-12, 1e3},
                {"all_to_all_times", 1e-9, 1e9},
                {"bus_gb_s", 0, 1e15},
                {"algorithm_gb_s", 0, 1e15}};

// Checks all figures in `value`. `path`: the keys that lead to it, "network.inside".
void check_figures(const json& value, std::string_view key, const std::string& path) {
  if (const auto* figure = std::ranges::find(kFigures, key, [](const auto& f) { return f.key; });
      figure != std::end(kFigures)) {
    const double number = value.is_number() ? value.get<double>() : -1;
    expect(number >= figure->least && number <= figure->most,
           str(path, " must be a number from ", figure->least, " to ", figure->most, ", not ",
               value.is_number() ? str(number) : value.type_name()));
  }
  if (value.is_structured()) {
    expect(path.size() < 200, "its parts are nested too deeply");
    for (const auto& [name, below] : value.items()) {
      check_figures(below, name, str(path, path.empty() ? "" : ".", name));
    }
  }
}

const json& at(const json& object, const char* name, std::string_view path = "") {
  expect(object.is_object() && object.contains(name), str(path, name, " is missing"));
  return object[name];
}

std::optional<Link> link_from(const json& network, const char* name) {
  if (!network.contains(name)) {
    return std::nullopt;
  }
  const json& text = network[name];
  const bool two = text.contains("short");
  const json& part = two ? text["short"] : text;
  const std::string path = str("network.", name, "."), below = path + (two ? "short." : "");
  return Link{.latency_s = at(text, "latency_us", path).get<double>() / 1e6,
              .bytes_per_s = at(text, "gb_s", path).get<double>() * 1e9,
              .short_below = two ? at(part, "below_bytes", below).get<double>() : 0,
              .short_latency_s = at(part, "latency_us", below).get<double>() / 1e6,
              .short_bytes_per_s = at(part, "gb_s", below).get<double>() * 1e9,
              .all_to_all = text.value("all_to_all_times", 1.0)};
}

}  // namespace

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
  std::vector<MeasuredGroup> groups;
  const auto measure = [&](const char* scope, std::span<const int> colors) {
    const auto group = mesh.data().collectives().split(colors);
    groups.push_back({.scope = scope, .ranks = group->size(), .groups = ranks / group->size()});
    for (size_t kind = 0; kind < kMeasuredCollectives.size(); ++kind) {
      groups.back().samples[kind] = sample_link(mesh.data(), *group, kind, compute,
                                                {.largest = largest, .budget_s = INFINITY});
    }
  };
  if (node_size > 1) {
    measure("inside", node_of_rank);
  }
  if (nodes > 1) {
    measure("between", place);
  }
  if (groups.size() > 1) {
    measure("all", std::vector<int>(node_of_rank.size(), 0));
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
  Link best = fit_link(all);
  double least = error_of(best, all);
  for (size_t size = 2; size + 2 <= starts.size(); ++size) {
    const size_t cut = starts[size];
    const auto below = all.first(cut), above = all.subspan(cut);
    const Link low = fit_link(below), high = fit_link(above);
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
  const auto passing = [&](const LinkSample& sample) {
    return sharing * passed(group.ranks, static_cast<double>(sample.bytes));
  };
  std::vector<LinkSample> passes;
  for (size_t kind = 0; kind < kAllToAll; ++kind) {
    for (const LinkSample& sample : group.samples[kind]) {
      passes.push_back({static_cast<int64_t>(passing(sample)),
                        sample.seconds / kMeasuredCollectives[kind].passes});
    }
  }
  Link link = fit_two_lines(std::move(passes));
  link.latency_s /= group.ranks - 1;  // a pass goes over that many links
  link.short_latency_s /= group.ranks - 1;
  double sum = 0, squares = 0;  // of what the link would take alone, as shares of what was measured
  for (const LinkSample& sample : group.samples[kAllToAll]) {
    if (const double bytes = passing(sample); bytes >= link.short_below) {
      const double share = (link.latency_s + bytes / link.bytes_per_s) / sample.seconds;
      sum += share;
      squares += share * share;
    }
  }
  if (squares > 0) {
    link.all_to_all = sum / squares;  // the least sum of squared relative errors
  }
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
    expect(at(machine, "format") == kFormat, str("format is not \"", kFormat, "\""));
    check_figures(machine, "", "");
    const json& network = at(machine, "network");
    expect(network.is_object() && machine.value("groups", json::array()).is_array(),
           "network must be an object, and groups a list");
    return {.inside = link_from(network, "inside"), .between = link_from(network, "between")};
  } catch (const json::exception&) {  // its text may quote any bytes
    fail(ExitCode::kData, str(path, ": no file of `tandem bench links --output`: no JSON"));
  } catch (const std::invalid_argument& error) {
    fail(ExitCode::kData, str(path, ": no file of `tandem bench links --output`: ", error.what()));
  }
}

}  // namespace tandem
