#include "comm/debugger.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "comm/world.h"
#include "src/device/ranks/agreement.h"

namespace tandem {

namespace {

// The rank that waits for a debugger; -1: none.
int rank_to_hold(int ranks) {
  const char* text = std::getenv("TANDEM_WAIT_RANK");
  if (!text) {
    return -1;
  }
  const std::string_view value(text);
  int rank = -1;
  const auto [end, error] = std::from_chars(value.begin(), value.end(), rank);
  if (error != std::errc() || end != value.end() || rank < 0 || rank >= ranks) {
    fail(ExitCode::kConfig, "TANDEM_WAIT_RANK=", value, ": must be a rank of this job, 0 to ",
         ranks - 1);
  }
  return rank;
}

bool is_traced() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("TracerPid:")) {
      return line.find_first_of("123456789") != std::string::npos;
    }
  }
  return false;
}

volatile std::sig_atomic_t continued = 0;

// Prints `how` to standard error and waits. A debugger that attaches stops this process until the
// user continues it.
void wait_for_debugger(const std::string& how) {
  std::signal(SIGCONT, [](int) { continued = 1; });
  std::fputs(how.c_str(), stderr);
  while (continued == 0 && !is_traced()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  std::signal(SIGCONT, SIG_DFL);
}

}  // namespace

void hold_for_debugger(World& world) {
  // Only rank 0 reads the variable: launchers do not copy the environment to other hosts.
  const int held = std::stoi(
      on_root(world.control(), [&] { return std::to_string(rank_to_hold(world.size())); }));
  if (held < 0) {
    return;
  }
  world.wait_without_end();
  if (held == world.rank()) {
    wait_for_debugger(str(
        "tandem: rank ", held, " waits as process ", getpid(), " on ", world.host(), ": `gdb -p ",
        getpid(), "` and there `continue`, or `kill -CONT ", getpid(), "`, lets it go on\n"));
  }
}

}  // namespace tandem
