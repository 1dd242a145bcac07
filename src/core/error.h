// One exception type for the whole program. It carries the process exit code that `main` returns.
#pragma once

#include <source_location>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// Exit codes of every `tandem` command. 64 and above follow sysexits(3) where one fits.
enum class ExitCode : int {
  kOk = 0,
  kConfig = 2,        // bad configuration or command line
  kData = 3,          // bad or missing data or checkpoint
  kNumerical = 64,    // loss or gradient not finite
  kInternal = 70,     // a bug in Tandem
  kOutOfMemory = 71,  // the message says what was requested and what holds the memory
  kTemporary = 75,    // lost peer, time-out, storage that is silent: start the job again
  kStopped = 85,      // stopped on request, checkpoint saved
};

// Concatenates the printed form of all arguments.
template <class... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

// Its message is the printed form of all arguments but the first.
class Error : public std::runtime_error {
 public:
  template <class... Args>
  explicit Error(ExitCode code, const Args&... what)
      : std::runtime_error(str(what...)), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// The words with `separator` between them.
std::string joined(std::span<const std::string> words, std::string_view separator = ", ");

// Throws a user-facing error: the printed form of all arguments says what, where, and what to do.
template <class... Args>
[[noreturn]] void fail(ExitCode code, const Args&... what) {
  throw Error(code, what...);
}
template <class... Args>
[[noreturn]] void fail_data(const Args&... what) {
  fail(ExitCode::kData, what...);
}
// Calls a function; its errors begin with the place of what it works on, such as "FILE:LINE: ".
template <class Use>
auto at_place(const std::string& place, const Use& use) {
  try {
    return use();
  } catch (const Error& error) {
    fail(error.code(), place, ": ", error.what());
  }
}
// Adds the printed form of all arguments.
template <class... Args>
void add_problem(std::vector<std::string>& problems, const Args&... what) {
  problems.push_back(str(what...));
}
// Throws Error(kConfig) with the first 20 problems, if there are any, each as visible() shows it in
// a line of its own.
void fail_if_any(const std::vector<std::string>& problems);

// What a contract says, and where it is checked.
struct Check {
  Check(bool ok, std::source_location here = std::source_location::current())
      : holds(ok), where(here) {}
  bool holds;
  std::source_location where;
};

[[noreturn]] void fail_check(const std::string& what, const std::source_location& where);

// Checks a programming contract; a violation is an internal error that says the printed form of all
// arguments and names the caller's place.
template <class... Args>
void require(Check check, const Args&... what) {
  if (!check.holds) [[unlikely]] {
    fail_check(str(what...), check.where);
  }
}

// Checks a contract whose message is costly, and so made by a function once it is broken.
template <class F>
requires std::is_invocable_r_v<std::string, F>
void require(Check check, const F& message) {
  if (!check.holds) [[unlikely]] {
    fail_check(message(), check.where);
  }
}

}  // namespace tandem
