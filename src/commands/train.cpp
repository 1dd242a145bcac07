// tandem train: resolves the settings, then runs the training loop.
#include <csignal>

#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/commands/settings.h"
#include "src/device/ranks/agreement.h"
#include "src/settings/changes.h"
#include "src/train/trainer.h"

namespace tandem {

namespace {

constexpr const char* kUsage = R"(tandem train: trains a model

  tandem train FILE.cfg [FILE.cfg ...] [--section.key VALUE ...]
  mpirun -np 8 tandem train configs/shakespeare_char.cfg --train.steps 100

The command line wins over files, and a later file over an earlier one; --config FILE is the same as FILE. A relative
data.path begins in the working directory or, where it is not there, in the run's folder or the nearest folder above that.
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

}  // namespace

ExitCode train_command(const Words& words, World& world) {
  // Rank 0 reads and checks, and reports everything wrong together; all ranks get the same text.
  const std::string text = on_root(world.control(), [&] {
    RunRequest request(usage());
    request.add_settings();
    std::vector<std::string> problems = apply_settings(request.options, words);
    if (!request.help) {
      append(problems, problems_of(request.config, world.size()));
    }
    fail_if_any(problems);
    if (request.help) {
      print_help(request.options, world);
      return std::string();
    }
    return request.config.ini_text();
  });
  if (text.empty()) {
    return ExitCode::kOk;
  }
  std::signal(SIGPIPE, SIG_IGN);  // the reader of the output may go away: `tandem train | head`
  return Trainer(config_from_text(text, "settings"), world).run();
}

}  // namespace tandem
