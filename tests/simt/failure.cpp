#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/simt/launch.h"
#include "tests/simt/simt.h"
#include "tests/simt/streams/stream.h"

namespace simt {

namespace {

constexpr int kExitCode = 99;
FailureHandler failure_handler;

}  // namespace

FailureHandler set_failure_handler(FailureHandler handler) {
  const RuntimeLock lock;  // the background thread may be running
  return std::exchange(failure_handler, std::move(handler));
}

void fail(const std::string& what, const std::string& detail) {
  const std::string place = running_place();
  std::string message = "simt: " + what;
  message += place.empty() ? "" : " in " + place;
  message += detail.empty() ? "" : ": " + detail;
  if (failure_handler) {
    failure_handler(message);
  }
  std::fprintf(stderr, "%s\n", message.c_str());
  std::_Exit(kExitCode);
}

std::string failure_of(const std::function<void()>& run) {
  FailureHandler before = set_failure_handler([](const std::string& text) { throw Failure(text); });
  std::string message;
  for (const std::function<void()>& action : {run, std::function<void()>(synchronize_device)}) {
    try {
      action();
    } catch (const Failure& failure) {
      message = message.empty() ? failure.what() : message;
    }
  }
  set_failure_handler(std::move(before));
  return message;
}

Counters& counters() {
  static Counters counters;
  return counters;
}

}  // namespace simt
