// What several commands do alike before they begin.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "src/options/options.h"
#include "src/settings/config.h"

namespace tandem {

// Throws AgreedError(kConfig) if several processes run `command`, such as "export". `advice` ends
// the message.
void require_one_process(const World& world, const std::string& command,
                         const std::string& advice = "");

// Prints the help on rank 0. `shown`: as for Options::help.
ExitCode print_help(const Options& options, const World& world,
                    const std::vector<std::string>& shown = {});

// Throws Error(kConfig) if a file that is written at `output`, or beside it until it is whole,
// would replace an input.
void require_other_output(const std::string& output, const std::vector<std::string>& inputs);

// Error kData if not all of the standard output could be written.
void require_output_written();

// Calls `handler` at SIGINT, SIGTERM and SIGHUP. Under nohup SIGHUP stays without effect.
void catch_ends(void (*handler)(int));

// From now on these signals remove OUTPUT.partial before they end the process.
void clean_up_on_signals(const std::string& output);

// Adds the options that name a model: --checkpoint, --base and --adapter.
void add_model(Options& options, std::string& checkpoint, std::string& base, std::string& adapter);

// Adds the option --template: "plain" or a chat template.
void add_template(Options& options, std::string& form, const std::string& help);

// The options of a command that takes the settings of a run. A derived struct adds its own options
// and then calls add_settings().
struct RunRequest {
  explicit RunRequest(const std::string& usage);
  void add_settings();

  std::vector<std::string> files;
  Config config;
  bool help = false;
  Options options;
};

}  // namespace tandem
