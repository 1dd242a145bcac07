// tandem compare: what differs between runs.
#include <algorithm>
#include <cstdio>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/core/formatted.h"
#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/report/console.h"
#include "src/report/run_facts.h"
#include "src/report/writers/plot.h"

namespace tandem {

namespace {

constexpr const char* kUsage = R"(tandem compare: which settings and results of runs differ

  tandem compare runs/first runs/second [runs/third ...]

Takes two to six runs. Shows the settings that are not the same in all of them, results, and curves of the training
loss, all on the same axes.)";

constexpr size_t kColumns = 80, kLabel = 28, kPlotLabel = 18, kMostRuns = 6;

// The end of the text in `width` columns, with a tilde where it was cut.
std::string fitted(const std::string& given, size_t width) {
  const std::string text = visible(given);
  return text.size() <= width ? text : "~" + text.substr(text.size() - width + 1);
}

void print_row(const std::string& label, const std::vector<std::string>& cells) {
  const size_t width = (kColumns - kLabel) / cells.size();
  std::string line = fitted(label, kLabel - 1);
  for (size_t i = 0; i < cells.size(); ++i) {
    line.resize(kLabel + i * width, ' ');
    line += fitted(cells[i], width - 1);
  }
  show("%s\n", line.c_str());
}

// A row with cell(run) for each run, unless all cells are empty.
template <class F>
void print_for_each(const std::string& label, const std::vector<RunFacts>& runs, F&& cell) {
  const std::vector<std::string> cells = mapped(runs, cell);
  if (!std::ranges::all_of(cells, &std::string::empty)) {
    print_row(label, cells);
  }
}

// Runs of one name are called by their paths.
void name_apart(std::vector<RunFacts>& runs) {
  for (const RunFacts& run : runs) {
    if (std::ranges::count(runs, run.name, &RunFacts::name) > 1) {
      std::ranges::for_each(runs, [](RunFacts& each) { each.name = each.path; });
      return;
    }
  }
}

void print_settings(const std::vector<RunFacts>& runs) {
  std::vector<std::string> keys;  // in the order of the first run that has them
  for (const RunFacts& run : runs) {
    for (const Assignment& setting : run.settings) {
      if (std::ranges::find(keys, setting.key) == keys.end()) {
        keys.push_back(setting.key);
      }
    }
  }
  std::erase_if(keys, [&](const std::string& key) {
    return key == "run.name" || key == "run.dir" ||
           std::ranges::all_of(
               runs, [&](const RunFacts& run) { return run.setting(key) == runs[0].setting(key); });
  });
  show("%s\n", keys.empty() ? "settings: all the same" : "settings that differ");
  for (const std::string& key : keys) {
    print_for_each("  " + key, runs, [&](const RunFacts& run) { return run.setting(key); });
  }
}

std::string loss_text(const std::optional<RunFacts::Loss>& loss) {
  return loss ? formatted("%.4f", loss->value) : "";
}

void print_results(const std::vector<RunFacts>& runs) {
  show("results\n");
  print_for_each("  state", runs, [](const RunFacts& run) { return run.state(); });
  print_for_each("  steps", runs, [](const RunFacts& run) {
    return str(run.step, run.step < run.steps ? str(" of ", run.steps) : "");
  });
  print_for_each("  loss", runs, [](const RunFacts& run) { return loss_text(run.loss); });
  print_for_each("  val_loss", runs, [](const RunFacts& run) { return loss_text(run.val_loss); });
  print_for_each("  best val_loss", runs,
                 [](const RunFacts& run) { return loss_text(run.best_val_loss); });
  print_for_each("  at step", runs, [](const RunFacts& run) {
    return run.best_val_loss ? str(run.best_val_loss->step) : "";
  });
  for (const std::string name : {"tokens_per_s", "images_per_s"}) {
    print_for_each("  " + name, runs, [&](const RunFacts& run) {
      return run.rate_name == name ? format_count(run.rate) : "";
    });
  }
  print_for_each("  step_ms", runs, [](const RunFacts& run) {
    return run.step_ms > 0 ? formatted("%.4g", run.step_ms) : "";
  });
  print_for_each("  size", runs, [](const RunFacts& run) { return format_bytes(run.bytes); });
}

void print_curves(const std::vector<RunFacts>& runs) {
  std::vector<RunFacts::Loss> all;
  for (const RunFacts& run : runs) {
    all.insert(all.end(), run.curve.begin(), run.curve.end());
  }
  if (all.empty()) {
    return;
  }
  const auto [low, high] = std::ranges::minmax(all, {}, &RunFacts::Loss::value);
  const auto [first, last] = std::ranges::minmax(all, {}, &RunFacts::Loss::step);
  show("training loss, step %ld to %ld\n", first.step, last.step);
  for (const RunFacts& run : runs) {
    const auto points = mapped(run.curve, [](const RunFacts::Loss& loss) {
      return std::pair(static_cast<double>(loss.step), loss.value);
    });
    const PlotArea area{.left = static_cast<double>(first.step),
                        .right = static_cast<double>(last.step),
                        .bottom = low.value,
                        .top = high.value,
                        .columns = static_cast<int>(kColumns - kPlotLabel - 10)};
    const std::vector<std::string> lines = braille_plot(points, area);
    for (size_t i = 0; i < lines.size(); ++i) {
      const std::string name = i == 1 ? "  " + fitted(run.name, kPlotLabel - 4) : "";
      const std::string scale = i == 0                  ? loss_text(high)
                                : i + 1 == lines.size() ? loss_text(low)
                                                        : "";
      show("%-*s%8s |%s\n", static_cast<int>(kPlotLabel), name.c_str(), scale.c_str(),
           lines[i].c_str());
    }
  }
}

}  // namespace

ExitCode compare_command(const Words& words, World& world) {
  require_one_process(world, "compare");
  bool help = false;
  Options options(kUsage);
  options.add("help", help, "print this");
  const CommandLine line = options.parse(words);
  std::vector<std::string> problems = options.apply(line.assignments);
  const size_t count = line.positional.size();
  if (!help && (count < 2 || count > kMostRuns)) {
    add_problem(problems, "tandem compare takes 2 to ", kMostRuns, " runs, not ", count,
                "; --help shows an example");
  }
  fail_if_any(problems);
  if (help) {
    return print_help(options, world);
  }
  std::vector<RunFacts> runs;
  for (const std::string& path : line.positional) {
    if (!is_run(path)) {
      fail_data(path + ": no run here; name the folder of a run, such as runs/NAME");
    }
    runs.push_back(read_run(RunDirectory(path)));
  }
  name_apart(runs);
  print_for_each("", runs, [](const RunFacts& run) { return run.name; });
  print_settings(runs);
  print_results(runs);
  print_curves(runs);
  return ExitCode::kOk;
}

}  // namespace tandem
