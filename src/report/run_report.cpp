#include "src/report/run_report.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/core/mapped.h"
#include "src/io/file.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kLabelWidth = 30;
constexpr size_t kColumnWidth = 12;
constexpr size_t kInspectedRanks = 4;

// All numbers of a RankUse in one fixed order: calls visit(number) for each.
template <class Use, class F>
void for_each_number(Use& use, F&& visit) {
  for (auto& bytes : use.wire.by) {
    visit(bytes.inside);
    visit(bytes.between);
  }
  visit(use.wire.collectives);
  for (auto& peak : use.memory_peak) {
    visit(peak);
  }
  visit(use.peak_bytes);
  visit(use.reserved_bytes);
  visit(use.saved_copy_bytes);
  visit(use.host_bytes);
}

// Which of `count` enumerators is called `name`.
template <class Enum>
size_t index_named(std::string_view name, int count) {
  for (int i = 0; i < count; ++i) {
    if (name_of(static_cast<Enum>(i)) == name) {
      return static_cast<size_t>(i);
    }
  }
  fail_data("no ", name, " is known");
}

// Reads a rank of report.json or a line of metrics.jsonl. What is not named there was not used.
RankUse use_of(const Json& json) {
  RankUse use;
  json.at("peak_bytes").get_to(use.peak_bytes);
  use.reserved_bytes = json.value("reserved_bytes", int64_t{0});
  use.saved_copy_bytes = json.value("saved_copy_bytes", int64_t{0});
  use.host_bytes = json.value("host_bytes", int64_t{0});
  for (const auto& [name, bytes] : json.at("memory").items()) {
    use.memory_peak[index_named<MemoryClass>(name, kMemoryClasses)] = bytes.get<int64_t>();
  }
  for (const auto& [name, bytes] : json.at("wire").items()) {
    use.wire.by[index_named<Traffic>(name, kTraffics)] = {
        .inside = bytes.at("inside").get<int64_t>(), .between = bytes.at("between").get<int64_t>()};
  }
  use.wire.collectives = json.value("collectives", int64_t{0});
  return use;
}

// Calls read(), which parses the file `path`, and turns its exceptions into Error(kData).
template <class F>
auto reading(const std::string& path, F&& read) {
  try {
    return read();
  } catch (const std::exception& error) {
    fail_data(path, ": damaged, move it away (", error.what(), ")");
  }
}

struct Column {
  std::string heading;
  RankUse use;
};

class Table {
 public:
  Table(const std::string& title, std::span<const Column> columns) : columns_(columns) {
    add(title, [](const Column& column) { return column.heading; });
  }

  // A line: its label, and cell(column) for each column.
  template <class F>
  void add(const std::string& label, F&& cell) {
    text_ += text_.empty() ? "" : "\n";
    text_ += label;
    size_t width = label.size(), end = kLabelWidth;
    for (const Column& column : columns_) {
      const std::string figure = cell(column);
      end += std::max(kColumnWidth, column.heading.size() + 2);
      text_.append(end > width + figure.size() ? end - width - figure.size() : 1, ' ');
      text_ += figure;
      width = end;
    }
  }

  // The same for bytes. Adds no line when every column has 0.
  template <class F>
  void add_bytes(const std::string& label, F&& bytes) {
    if (std::ranges::any_of(columns_, [&](const Column& c) { return bytes(c.use) > 0; })) {
      add("  " + label, [&](const Column& column) { return format_bytes(bytes(column.use)); });
    }
  }

  const std::string& text() const { return text_; }

 private:
  std::span<const Column> columns_;
  std::string text_;
};

std::string memory_table(const std::string& title, std::span<const Column> columns) {
  Table table(title, columns);
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    table.add_bytes(std::string(name_of(static_cast<MemoryClass>(i))),
                    [i](const RankUse& use) { return use.memory_peak[i]; });
  }
  table.add_bytes("all together", [](const RankUse& use) { return use.peak_bytes; });
  table.add_bytes("copy to save (host)", [](const RankUse& use) { return use.saved_copy_bytes; });
  table.add_bytes("offloaded (host)", [](const RankUse& use) { return use.host_bytes; });
  return table.text();
}

std::string wire_table(const std::string& title, std::span<const Column> columns) {
  const auto nothing = [](const Column& c) { return c.use.wire.by == WireCount{}.by; };
  if (std::ranges::all_of(columns, nothing)) {
    return title + ": nothing";
  }
  Table table(title, columns);
  for (int i = 0; i < kTraffics; ++i) {
    const auto traffic = static_cast<Traffic>(i);
    table.add_bytes(str(name_of(traffic), " inside nodes"),
                    [&](const RankUse& use) { return use.wire.of(traffic).inside; });
    table.add_bytes(str(name_of(traffic), " between nodes"),
                    [&](const RankUse& use) { return use.wire.of(traffic).between; });
  }
  table.add_bytes("together", [](const RankUse& use) {
    return use.wire.payload().total() + use.wire.of(Traffic::kControl).total();
  });
  return table.text();
}

WireCount per_step(const WireCount& wire, int64_t steps) {
  WireCount mean = wire;
  for (WireCount::Bytes& bytes : mean.by) {
    bytes = {.inside = bytes.inside / steps, .between = bytes.between / steps};
  }
  mean.collectives /= steps;
  return mean;
}

// What metrics.jsonl holds.
struct Logged {
  int64_t lines = 0;          // of training
  Json training, validation;  // the latest lines; null: none
};

Logged read_log(const std::string& path) {
  Logged logged;
  read_metrics(path, [&](const Json& line) {
    if (line.contains("loss")) {
      ++logged.lines;
      logged.training = line;
    } else if (line.contains("val_loss")) {
      logged.validation = line;
    }
  });
  return logged;
}

// "loss 1.9312 at step 40"; metrics.jsonl has null for a loss that is not finite.
std::string loss_text(const Json& line, const char* key) {
  const Json& loss = line.at(key);
  return str(key, ' ', loss.is_number() ? str(loss.get<double>()) : "not finite", " at step ",
             line.at("step").get<int64_t>());
}

std::string describe_log(const Logged& logged) {
  std::string text = "logged      " + counted(logged.lines, "line");
  if (!logged.training.is_null()) {
    text += ", " + loss_text(logged.training, "loss");
  }
  if (!logged.validation.is_null()) {
    text += ", " + loss_text(logged.validation, "val_loss");
  }
  return text;
}

// The tables of a run that has no report of its end.
std::string describe_last_line(const Json& line, const std::string& path) {
  if (!line.contains("memory") || !line.contains("wire")) {
    return "memory, bytes sent: not in " + path;
  }
  const RankUse use = reading(path, [&] { return use_of(line); });
  const std::array memory{Column{"largest rank", use}}, wire{Column{"busiest rank", use}};
  return str(memory_table("peak memory", memory), '\n',
             wire_table(str("sent in step ", line.at("step").get<int64_t>()), wire));
}

}  // namespace

std::string RankUse::text() const {
  std::string text;
  for_each_number(*this, [&](int64_t number) { text += std::to_string(number) + ' '; });
  return gpu ? text + gpu->text() : text;
}

RankUse RankUse::from_text(std::string_view text) {
  std::istringstream in{std::string(text)};
  RankUse use;
  for_each_number(use, [&](int64_t& number) { in >> number; });
  require(static_cast<bool>(in), "RankUse: not one: '", text, "'");
  std::string rest;
  std::getline(in >> std::ws, rest);
  if (!rest.empty()) {
    use.gpu = GpuUse::from_text(rest);
  }
  return use;
}

size_t busiest_rank(std::span<const RankUse> ranks) {
  const auto payload = [](const RankUse& use) { return use.wire.payload().total(); };
  return static_cast<size_t>(std::ranges::max_element(ranks, {}, payload) - ranks.begin());
}

size_t largest_rank(std::span<const RankUse> ranks) {
  return static_cast<size_t>(std::ranges::max_element(ranks, {}, &RankUse::peak_bytes) -
                             ranks.begin());
}

std::vector<Metric> wire_metrics(const WireCount& wire) {
  std::vector<Metric> metrics;
  for (int i = 0; i < kTraffics; ++i) {
    const auto traffic = static_cast<Traffic>(i);
    const WireCount::Bytes& bytes = wire.of(traffic);
    if (bytes.total() > 0) {
      metrics.push_back(
          {std::string(name_of(traffic)),
           std::vector<Metric>{{"inside", bytes.inside}, {"between", bytes.between}}});
    }
  }
  return metrics;
}

std::vector<Metric> memory_metrics(std::span<const int64_t, kMemoryClasses> memory_peak) {
  std::vector<Metric> metrics;
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    if (memory_peak[i] > 0) {
      metrics.push_back({std::string(name_of(static_cast<MemoryClass>(i))), memory_peak[i]});
    }
  }
  return metrics;
}

std::string RunReport::json() const {
  Json json = {{"first_step", first_step}, {"step", step}, {"read_ahead", read_ahead}};
  if (unused_parameters) {
    json["unused_parameters"] = *unused_parameters;
  }
  if (packing) {
    json["padding"] = packing->padding;
    json["documents_cut"] = packing->documents_cut;
  }
  json["ranks"] = Json::array();
  for (const RankUse& use : ranks) {
    json["ranks"].push_back(Json::parse(to_json_line({{"peak_bytes", use.peak_bytes},
                                                      {"reserved_bytes", use.reserved_bytes},
                                                      {"saved_copy_bytes", use.saved_copy_bytes},
                                                      {"host_bytes", use.host_bytes},
                                                      {"memory", memory_metrics(use.memory_peak)},
                                                      {"collectives", use.wire.collectives},
                                                      {"wire", wire_metrics(use.wire)}})));
  }
  json["starts"] = Json::array();
  for (const RunStart& start : starts) {
    json["starts"].push_back(start.json());
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

RunReport RunReport::from_json(const std::string& text, const std::string& path) {
  return reading(path, [&] {
    const Json json = Json::parse(text);
    RunReport report;
    json.at("first_step").get_to(report.first_step);
    json.at("step").get_to(report.step);
    report.read_ahead = json.value("read_ahead", int64_t{0});
    if (json.contains("unused_parameters")) {
      report.unused_parameters = json["unused_parameters"].get<int64_t>();
    }
    report.ranks = mapped(json.at("ranks"), use_of);
    report.starts = mapped(json.value("starts", Json::array()), RunStart::from_json);
    if (report.ranks.empty() && report.starts.empty()) {
      fail_data("no ranks and no starts");
    }
    return report;
  });
}

RunReport RunReport::of_earlier_starts(const std::string& path, int64_t step) {
  RunReport report;
  if (std::filesystem::exists(path)) {
    report = from_json(read_file(path), path);
  }
  if (report.step > step) {
    report = {.starts = std::move(report.starts)};
  }
  for (RunStart& start : report.starts) {
    if (start.state == "running") {
      start.state = "died";
    }
  }
  return report;
}

std::string RunReport::tables(size_t most_columns) const {
  require(!ranks.empty(), "RunReport: ranks");
  const size_t largest = largest_rank(ranks), busiest = busiest_rank(ranks);
  std::vector<Column> memory, wire;
  if (ranks.size() <= most_columns) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      memory.push_back({str("rank ", r), ranks[r]});
    }
    wire = memory;
  } else {
    memory = {{str("largest, rank ", largest), ranks[largest]}};
    wire = {{str("busiest, rank ", busiest), ranks[busiest]}};
  }
  const int64_t steps = step - first_step;
  if (steps > 0) {
    RankUse mean;
    mean.wire = per_step(ranks[busiest].wire, steps);
    wire.push_back({str("a step, rank ", busiest), mean});
  }
  return str(memory_table("peak memory", memory), '\n', wire_table("sent to other ranks", wire),
             str("\nlast start  ", counted(steps, "step"), " from step ", first_step, ", on ",
                 counted(static_cast<int64_t>(ranks.size()), "rank")));
}

std::string describe_run(const RunDirectory& directory) {
  namespace fs = std::filesystem;
  Logged logged;
  std::optional<RunReport> report;
  std::string text;
  if (fs::exists(directory.metrics())) {
    logged = read_log(directory.metrics());
    text = describe_log(logged);
  }
  if (fs::exists(directory.report())) {
    report = RunReport::from_json(read_file(directory.report()), directory.report());
  }
  const bool trained = !logged.training.is_null();
  // A run that was started again has logged lines after the report of its earlier end.
  if (report && (report->ranks.empty() ||
                 (trained && logged.training.at("step").get<int64_t>() > report->step))) {
    report.reset();
  }
  if (report) {
    text += str(text.empty() ? "" : "\n", report->tables(kInspectedRanks));
  } else if (trained) {
    text += "\n" + describe_last_line(logged.training, directory.metrics());
  }
  return text;
}

}  // namespace tandem
