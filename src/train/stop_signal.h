// Turns SIGINT and SIGTERM into a request that the training loop reads once a step.
#pragma once

#include <string>

namespace tandem {

class StopSignal {
 public:
  // Installs the handlers. One at a time in a process; a second signal of the same kind ends the
  // process at once. With `announce`, the handler prints one line at once, for whoever pressed
  // Ctrl-C.
  explicit StopSignal(bool announce);
  ~StopSignal();  // puts the former handlers back
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const;
  // Named in the line that the handler prints, in case the next save does not finish.
  void set_last_checkpoint(const std::string& path);
};

}  // namespace tandem
