// A file that asks a run to stop: for jobs that no signal reaches.
#pragma once

#include <functional>
#include <string>

namespace tandem {

class StopFile {
 public:
  // An empty path: never asks. now_s: a clock in seconds, for tests; null: the steady clock.
  explicit StopFile(std::string path, std::function<double()> now_s = nullptr);

  // True as soon as the file was seen; looks for it at the first call, then at most once a second.
  // When it sees the file it prints a line, which says that the run stops after `step`.
  bool requested(int64_t step);

 private:
  std::string path_;
  std::function<double()> now_s_;
  double look_at_s_ = 0;  // the next time to look
  bool looked_ = false, seen_ = false;
};

}  // namespace tandem
