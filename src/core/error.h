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
  kTemporary = 75,    // lost peer or time-out: start the job again
  kStopped = 85,      // stopped on request, checkpoint saved
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Concatenates the printed form of all arguments.
template <class... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

// The words with `separator` between them.
std::string joined(std::span<const std::string> words, std::string_view separator = ", ");

// Throws a user-facing error: the message says what, where, and what to do.
[[noreturn]] void fail(ExitCode code, const std::string& message);
// Throws Error(kData) with the printed form of all arguments.
template <class... Args>
[[noreturn]] void fail_data(const Args&... args) {
  fail(ExitCode::kData, str(args...));
}
// Throws Error(kConfig) with the first 20 problems, one a line, if there are any.
void fail_if_any(const std::vector<std::string>& problems);

// Checks a programming contract; a violation is an internal error that names the caller's place.
void require(bool ok, std::string_view what,
             std::source_location where = std::source_location::current());

// As above, with values: the message is only built when the contract is broken.
template <class F>
requires std::is_invocable_r_v<std::string, F>
void require(bool ok, F&& message, std::source_location where = std::source_location::current()) {
  if (!ok) [[unlikely]] {
    require(false, std::string_view(message()), where);
  }
}

}  // namespace tandem
