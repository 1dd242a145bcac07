#include "src/commands/request.h"

#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "src/device/ranks/agreement.h"

namespace tandem {

namespace {

// What a signal leaves behind otherwise; a handler reaches only static memory.
char partial_output[PATH_MAX] = "";

void remove_output_and_end(int number) {
  ::unlink(partial_output);
  std::signal(number, SIG_DFL);
  std::raise(number);
}

}  // namespace

void require_one_process(const World& world, const std::string& command,
                         const std::string& advice) {
  if (world.size() > 1) {
    throw AgreedError(ExitCode::kConfig, "tandem ", command,
                      " runs as one process; start it without mpirun", advice);
  }
}

ExitCode print_help(const Options& options, const World& world,
                    const std::vector<std::string>& shown) {
  if (world.rank() == 0) {
    std::fputs(options.help(shown).c_str(), stdout);
  }
  return ExitCode::kOk;
}

void require_other_output(const std::string& output, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code missing;
    if (std::filesystem::equivalent(input, output, missing) ||
        std::filesystem::equivalent(input, output + ".partial", missing)) {
      fail(ExitCode::kConfig, "--output ", output, " is an input too; write another file");
    }
  }
}

void require_output_written() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    fail_data("standard output: not all of the output could be written");
  }
}

void catch_ends(void (*handler)(int)) {
  std::signal(SIGINT, handler);
  std::signal(SIGTERM, handler);
  if (std::signal(SIGHUP, handler) == SIG_IGN) {
    std::signal(SIGHUP, SIG_IGN);
  }
}

void clean_up_on_signals(const std::string& output) {
  std::snprintf(partial_output, sizeof partial_output, "%s.partial", output.c_str());
  catch_ends(remove_output_and_end);
}

void add_model(Options& options, std::string& checkpoint, std::string& base, std::string& adapter) {
  options.add("checkpoint", checkpoint, "a run's folder, a checkpoint's or a Hugging Face model's");
  options.add("base", base, "where the weights are now that the checkpoint refers to");
  options.add("adapter", adapter, "adapters for the model: a folder of peft, or a run of ours");
}

void add_template(Options& options, std::string& form, const std::string& help) {
  options.add_choice("template", form,
                     {{"plain", "plain"}, {"chatml", "chatml"}, {"llama3", "llama3"}}, help);
}

RunRequest::RunRequest(const std::string& usage) : options(usage) {
  options.add("config", files, "settings to read; may repeat");
}

void RunRequest::add_settings() {
  options.add("help", help, "print this");
  config.bind(options);
}

}  // namespace tandem
