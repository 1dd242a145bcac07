// All tests that run kernels, in one program, for machines that have CUDA and little else.
//
//   tandem_gpu_check             all suites, one line each
//   tandem_gpu_check --device    prints which GPU there is, and exits
//   --only TEXT[,TEXT...]        runs only suites whose names contain one of the texts
//   --jobs N                     suites at a time (1)
//   --limit SECONDS              time limit of one suite (300)
//   --results FILE               appends each suite's line to this file at once
//   --log FILE                   appends what the tests print
//
// Each suite runs in a process of its own, because after a fault CUDA refuses all further work of
// the process. Matrix products come first, because everything else needs them, and misaligned
// operands last. Exit codes: 0 all passed, 1 some did not, 2 there is no GPU or an option is wrong.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <sstream>
#include <thread>
#include <vector>

#include "src/core/error.h"
#include "src/device/cuda.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {

// A world of 1 rank, without MPI (comm/world_self.cpp).
World& test_world() {
  static World world;
  return world;
}

namespace {

using Options = std::map<std::string, std::string>;

std::string value_of(const Options& options, const std::string& name,
                     const std::string& otherwise) {
  return options.contains(name) ? options.at(name) : otherwise;
}

using Clock = std::chrono::steady_clock;

// The process of one suite, and what it prints.
class Child {
 public:
  // Starts this program again. It has `limit_s` seconds.
  Child(std::string suite, double limit_s)
      : suite_(std::move(suite)), limit_s_(limit_s), printed_(std::tmpfile(), std::fclose) {
    require(printed_ != nullptr, "no temporary file can be made");
    id_ = fork();
    if (id_ == 0) {
      dup2(fileno(printed_.get()), STDOUT_FILENO);
      dup2(fileno(printed_.get()), STDERR_FILENO);
      setenv("TANDEM_REQUIRE_DEVICES", "cpu,cuda", 1);
      execl("/proc/self/exe", "tandem_gpu_check", "--suite", suite_.c_str(), nullptr);
      _exit(127);
    }
  }

  const std::string& suite() const { return suite_; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  // Whether the process has ended; it is killed when its time is over.
  bool has_ended() {
    int status = 0;
    if (waitpid(id_, &status, WNOHANG) == 0) {
      if (seconds() <= limit_s_) {
        return false;
      }
      kill(id_, SIGKILL);
      waitpid(id_, &status, 0);
      wrong_ = str("not finished after ", limit_s_, " s");
    } else if (WIFSIGNALED(status)) {
      wrong_ = str("ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
    } else if (WEXITSTATUS(status) != 0) {
      wrong_ = str("exit code ", WEXITSTATUS(status));
    }
    return true;
  }
  // Says, once the process has ended, what went wrong; "" if it ended well within the time.
  const std::string& wrong() const { return wrong_; }
  std::string printed() const {
    std::rewind(printed_.get());
    std::string text;
    for (int c = 0; (c = std::fgetc(printed_.get())) != EOF;) {
      text += static_cast<char>(c);
    }
    return text;
  }

 private:
  std::string suite_, wrong_{};
  double limit_s_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> printed_;
  Clock::time_point begin_ = Clock::now();
  pid_t id_ = 0;
};

std::vector<std::string> suites_in_order(const std::string& only) {
  const auto* tests = ::testing::UnitTest::GetInstance();
  std::vector<std::string> names;
  for (int i = 0; i < tests->total_test_suite_count(); ++i) {
    names.emplace_back(tests->GetTestSuite(i)->name());
  }
  std::erase_if(names, [&](const std::string& name) {
    std::istringstream texts(only);
    std::string text;
    bool wanted = only.empty();
    while (std::getline(texts, text, ',')) {
      wanted = wanted || name.find(text) != name.npos;
    }
    return !wanted;
  });
  const auto turn = [](const std::string& name) {
    return name.find("Misaligned") != name.npos ? 2 : name.starts_with("Product") ? 0 : 1;
  };
  std::ranges::stable_sort(names, {}, turn);
  return names;
}

// "[  SKIPPED ] 2 tests" in what GoogleTest printed -> " 2 tests skipped".
std::string skipped_in(const std::string& text) {
  constexpr std::string_view kMark = "[  SKIPPED ] ";
  for (size_t at = text.find(kMark); at != text.npos; at = text.find(kMark, at + 1)) {
    const size_t begin = at + kMark.size(), end = text.find(',', begin);
    if (std::isdigit(static_cast<unsigned char>(text[begin])) && end != text.npos) {
      return str(", ", text.substr(begin, end - begin), " skipped");
    }
  }
  return "";
}

// Prints a line, and appends it to the file of results.
void say(const std::string& line, const Options& options) {
  std::puts(line.c_str());
  std::fflush(stdout);
  if (options.contains("--results")) {
    std::ofstream(options.at("--results"), std::ios::app) << line << "\n";
  }
}

// Says how a suite went; whether it passed.
bool passed(const Child& child, const Options& options) {
  const std::string printed = child.printed(), &wrong = child.wrong();
  if (options.contains("--log")) {
    std::ofstream(options.at("--log"), std::ios::app) << printed;
  }
  char start[64];
  std::snprintf(start, sizeof start, "%s %7.2f s  ", wrong.empty() ? "passed" : "FAILED",
                child.seconds());
  say(str(start, child.suite(), wrong.empty() ? skipped_in(printed) : ": " + wrong), options);
  if (!wrong.empty()) {
    constexpr size_t kMost = 3000;  // print the end, where GoogleTest names what failed
    std::puts(printed.substr(printed.size() - std::min(printed.size(), kMost)).c_str());
  }
  return wrong.empty();
}

int run_suite(const std::string& suite) {
  constexpr double kDeadline_s = 30;
  test_world().set_timeout_s(kDeadline_s);
  GTEST_FLAG_SET(filter, suite + ".*");
  return RUN_ALL_TESTS();
}

int check_all(const Options& options) {
  const double limit_s = std::atof(value_of(options, "--limit", "300").c_str());
  const size_t jobs =
      static_cast<size_t>(std::max(1, std::atoi(value_of(options, "--jobs", "1").c_str())));
  const auto suites = suites_in_order(value_of(options, "--only", ""));
  int failed = 0;
  std::list<Child> running;
  for (size_t next = 0; next < suites.size() || !running.empty();) {
    while (next < suites.size() && running.size() < jobs) {
      running.emplace_back(suites[next++], limit_s);
    }
    running.remove_if([&](Child& child) {
      const bool ended = child.has_ended();
      failed += ended && !passed(child, options) ? 1 : 0;
      return ended;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  say(str(suites.size() - static_cast<size_t>(failed), " of ", suites.size(), " suites passed"),
      options);
  return failed == 0 && !suites.empty() ? 0 : 1;
}

Options options_of(int argc, char** argv) {
  const auto refuse = [](const std::string& what) {
    fail(ExitCode::kConfig, str(what,
                                "; there are --device, --only TEXT, --jobs N, --limit SECONDS, "
                                "--results FILE and --log FILE"));
  };
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const std::vector<std::string> with_value = {"--only",    "--jobs", "--limit",
                                                 "--results", "--log",  "--suite"};
    if (name != "--device" && std::ranges::count(with_value, name) == 0) {
      refuse("there is no option " + name);
    }
    if (name != "--device" && ++i == argc) {
      refuse(name + " has no value");
    }
    options[name] = argv[i];
  }
  if (options.contains("--limit") && std::atof(options["--limit"].c_str()) <= 0) {
    refuse("--limit " + options["--limit"] + " is no number of seconds");
  }
  if (options.contains("--jobs") && std::atoi(options["--jobs"].c_str()) <= 0) {
    refuse("--jobs " + options["--jobs"] + " is no number of suites");
  }
  return options;
}

int run(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const Options options = options_of(argc, argv);
  if (options.contains("--suite")) {
    return run_suite(options.at("--suite"));
  }
  if (cuda::device_count() == 0) {
    std::fprintf(stderr, "tandem_gpu_check: no GPU here: %s\n", cuda::why_no_device().c_str());
    return 2;
  }
  say(str(cuda::device_name(), ", ", cuda::versions()), options);
  return options.contains("--device") ? 0 : check_all(options);
}

}  // namespace
}  // namespace tandem::testing

int main(int argc, char** argv) {
  try {
    return tandem::testing::run(argc, argv);
  } catch (const tandem::Error& error) {
    std::fprintf(stderr, "tandem_gpu_check: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
