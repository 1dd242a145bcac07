#include "src/commands/main.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <new>

#include "comm/debugger.h"
#include "src/commands/commands.h"
#include "src/commands/request.h"
#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/device/device.h"
#include "src/device/ranks/agreement.h"
#include "src/options/hints.h"
#include "src/report/version.h"
#include "src/stop/stop_signal.h"

namespace tandem {
namespace {

constexpr const char* kUsage =
    R"(tandem: distributed training of transformers and convolutional networks

  tandem prepare KIND ...          make a dataset from files; KIND: text, sft (instruction data), images
  tandem train FILE.cfg ...        train a model; under mpirun -np N on N ranks
  tandem eval DIR                  loss, perplexity or accuracy on the whole validation set
  tandem generate DIR              text from a trained language model
  tandem serve DIR                 answers requests for texts over HTTP
  tandem export DIR                a model for Hugging Face's transformers
  tandem inspect FILE|DIR          what is in a dataset, a checkpoint, a run or a folder of runs
  tandem compare DIR DIR ...       which settings and results of runs differ
  tandem estimate FILE.cfg         memory, traffic and time of a training step, without running it
  tandem bench links               how fast ranks exchange data; under mpirun -np N

Each has --help; tandem --version says what was built. Exit codes: 0 finished, 2 bad configuration, 3 bad data or
checkpoint, 64 numerical failure, 70 internal error, 71 out of memory, 75 temporary (start again), 85 stopped on request
with a checkpoint saved.
)";

using Command = ExitCode (*)(const Words&, World&);
const std::map<std::string, Command> kCommands = {
    {"train", train_command},     {"eval", eval_command},       {"generate", generate_command},
    {"prepare", prepare_command}, {"inspect", inspect_command}, {"estimate", estimate_command},
    {"bench", bench_command},     {"compare", compare_command}, {"export", export_command},
    {"serve", serve_command}};

// Only an error of settings has several lines, one for each problem. Any other line break came from
// a file.
void complain_of(ExitCode code, const std::string& message) {
  complain(message, code == ExitCode::kConfig ? "\n" : "");
}

// Runs the command. An error that all ranks agreed on ends the job cleanly. Any other error aborts
// all ranks at once.
ExitCode run(Command command, const Words& words, World& world) {
  const auto abort_all = [&](ExitCode code, const std::string& message) {
    complain_of(code, world.size() > 1
                          ? str("rank ", world.rank(), " on ", world.host(), ": ", message)
                          : message);
    if (world.size() > 1) {
      world.abort(code);
    }
    return code;
  };
  try {
    hold_for_debugger(world);
    const ExitCode code = command(words, world);
    // Training does not end for want of a reader.
    if (command != train_command) {
      require_output_written();
    }
    world.finish(code);
    return code;
  } catch (const AgreedError& error) {
    if (world.rank() == 0) {
      complain_of(error.code(), error.what());
    }
    world.finish(error.code());
    return error.code();
  } catch (const Error& error) {
    return abort_all(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return abort_all(ExitCode::kOutOfMemory,
                     "out of memory outside the tensor pool; use fewer ranks or a smaller model");
  } catch (const std::filesystem::filesystem_error& error) {
    return abort_all(ExitCode::kData, str(error.path1().string(), ": ", error.code().message()));
  } catch (const std::exception& error) {
    return abort_all(ExitCode::kInternal, str("internal error: ", error.what()));
  }
}

// Opens standard streams that are closed. Otherwise the next opened file would take the number of
// one, and printed text would go to that file.
void open_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) < 0) {
      static_cast<void>(::open("/dev/null", O_RDWR));  // takes the lowest free number: this one
    }
  }
}

ExitCode unknown_command(const std::string& word) {
  std::vector<std::string> names = mapped(std::views::keys(kCommands));
  names.emplace_back("--version");
  const std::string known = known_elsewhere(word);
  const std::string guess = kCommands.contains(known) ? known : nearest_name(word, names);
  complain(str("no command ", word,
               guess.empty() ? "; there are " + joined(names) : "; did you mean " + guess + "?"));
  return ExitCode::kConfig;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  const Words words(argv + 1, argv + argc);
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    std::fputs(kUsage, stdout);
    return static_cast<int>(words.empty() ? ExitCode::kConfig : ExitCode::kOk);
  }
  if (words[0] == "--version") {
    std::fputs(version_text().c_str(), stdout);
    return static_cast<int>(ExitCode::kOk);
  }
  const auto found = kCommands.find(words[0]);
  if (found == kCommands.end()) {
    return static_cast<int>(unknown_command(words[0]));
  }
  if (std::ranges::count(words, "--help") == 0) {
    choose_openmp_settings(argv);  // may start the program again
  }
  if (found->first == "train") {
    StopSignal::expect_usr1();
  }
  std::signal(SIGXFSZ, SIG_IGN);  // a write above the limit of file sizes is then an error
  World world;
  return static_cast<int>(run(found->second, Words(words.begin() + 1, words.end()), world));
}

}  // namespace tandem
