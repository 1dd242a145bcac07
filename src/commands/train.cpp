// tandem train: resolves the settings, then runs the training loop.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <numeric>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/commands/settings.h"
#include "src/core/mapped.h"
#include "src/core/parse_number.h"
#include "src/device/ranks/agreement.h"
#include "src/report/writers/metrics_log.h"
#include "src/settings/changes.h"
#include "src/train/trainer.h"

namespace tandem {

namespace {

constexpr const char* kUsage = R"(tandem train: trains a model

  tandem train FILE.cfg [FILE.cfg ...] [--section.key VALUE ...]
  mpirun -np 8 tandem train configs/shakespeare_char.cfg --train.steps 100

The command line wins over files, and a later file over an earlier one; --config FILE is the same as FILE. --check tries
the settings alone, without data and GPUs, and prints them as one line of JSON. A relative data.path begins in the
working directory or, where it is not there, in the run's folder or the nearest folder above that.
A run that is started again under the same run.name goes on from its newest checkpoint.
These settings must then be what they were, all others may change:)";

std::string usage() {
  std::string text = kUsage;
  size_t width = 100;
  for (const std::string& key : fixed_keys()) {
    width += key.size() + 1;
    text += width > 100 ? "\n  " : " ";
    width = width > 100 ? key.size() + 2 : width;
    text += key;
  }
  return text;
}

// All settings as one line of JSON, {"run.name": "run", ...}: each value as in config.cfg.
std::string json_line(const Config& config) {
  const auto metric = [](const Assignment& setting) { return Metric{setting.key, setting.value}; };
  return to_json_line(mapped(parse_ini(config.ini_text(), "settings"), metric)) + "\n";
}

// A check does not know how many ranks there will be: as few as dist.node_size, dist.tensor and
// dist.islands allow.
int ranks_of_check(const Config& config) {
  const int64_t size = parse_number<int64_t>(config.dist.node_size).value_or(1);
  const int64_t node = std::lcm(std::clamp<int64_t>(size, 1, 1 << 20), config.dist.tensor);
  const int64_t ranks = std::lcm(node, std::max<int64_t>(config.dist.islands, 1));
  return static_cast<int>(std::min<int64_t>(ranks, 1 << 30));
}

}  // namespace

ExitCode train_command(const Words& words, World& world) {
  const std::vector<std::string> hosts = world.control().all_gather(world.host());
  // Rank 0 reads and checks, and reports everything wrong together; all ranks get the same text.
  const std::string text = on_root(world.control(), [&] {
    RunRequest request(usage());
    bool check = false;
    request.options.add("check", check, "try the settings and print them, but train nothing");
    request.add_settings();
    std::vector<std::string> problems = apply_settings(request.options, words);
    Config config = request.config;
    if (!request.help) {
      const int ranks = check ? ranks_of_check(config) : world.size();
      if (config.dist.islands == 0) {
        config.dist.set_islands(check ? std::vector<int>{0}
                                      : nodes_of(hosts, config.dist.ranks_a_node()));
      }
      append(problems, problems_of(config, ranks));
    }
    fail_if_any(problems);
    if (request.help) {
      print_help(request.options, world);
      return std::string();
    }
    if (check) {
      std::fputs(json_line(request.config).c_str(), stdout);
      require_output_written();
      return std::string();
    }
    return config.ini_text();
  });
  if (text.empty()) {
    return ExitCode::kOk;
  }
  std::signal(SIGPIPE, SIG_IGN);  // the reader of the output may go away: `tandem train | head`
  return Trainer(config_from_text(text, "settings"), world).run();
}

}  // namespace tandem
