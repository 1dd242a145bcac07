#include "src/stop/stop_file.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "src/core/error.h"

namespace tandem {

namespace {

double steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

StopFile::StopFile(std::string path, std::function<double()> now_s)
    : path_(std::move(path)), now_s_(now_s ? std::move(now_s) : steady_s) {}

bool StopFile::requested(int64_t step) {
  if (path_.empty() || seen_) {
    return seen_;
  }
  const double now = now_s_();
  if (looked_ && now < look_at_s_) {
    return false;
  }
  looked_ = true;
  look_at_s_ = now + 1;
  std::error_code error;  // a file that cannot be seen is not there
  seen_ = std::filesystem::exists(path_, error);
  if (seen_) {
    const std::string line = str("tandem: run.stop_file = ", path_, " is there: saving after step ",
                                 step, ", then stopping; remove the file before the run goes on\n");
    std::fputs(line.c_str(), stderr);
  }
  return seen_;
}

}  // namespace tandem
