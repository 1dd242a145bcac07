// Exposed communication of a step: how long the compute stream was idle because it waited for
// communication.
#pragma once

#include <utility>
#include <vector>

#include "src/device/stream.h"

namespace tandem {

class Exposure {
 public:
  // Calls compute.wait(communication) and measures how long that takes. On the CPU it blocks the
  // host.
  void wait(Stream& compute, const Event& communication);
  // On a GPU, call it only after the compute stream has passed the last wait.
  double seconds() const;

 private:
  double host_s_ = 0;
  std::vector<std::pair<Event, Event>> on_gpu_;  // before and after each wait
};

}  // namespace tandem
