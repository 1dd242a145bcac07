// The communication that no computation hid, in one step: how long the compute stream stood waiting
// for it.
#pragma once

#include <utility>
#include <vector>

#include "src/device/stream.h"

namespace tandem {

class Exposure {
 public:
  // compute.wait(communication), and what that costs. On the CPU it blocks the host.
  void wait(Stream& compute, const Event& communication);
  // On a GPU: once the compute stream has got behind the last wait.
  double seconds() const;

 private:
  double host_s_ = 0;
  std::vector<std::pair<Event, Event>> on_gpu_;  // around each wait of the compute stream
};

}  // namespace tandem
