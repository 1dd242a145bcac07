// All that may ask this rank to stop.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "src/stop/spot_watch.h"
#include "src/stop/stop_file.h"
#include "src/stop/stop_signal.h"

namespace tandem {

class StopRequests {
 public:
  // The first rank of the job announces signals and looks for the file.
  StopRequests(bool is_first, const std::string& file)
      : signal(is_first, std::getenv("OMPI_COMM_WORLD_RANK") != nullptr),
        file_(is_first ? file : "") {}

  // From now on a spot notice is a request, too. Throws what SpotWatch throws.
  void watch(WatchSpot mode, const std::string& host) { spot_ = watch_spot(mode, host); }

  // Returns at once. `step`: steps done, for messages.
  bool any(int64_t step) {
    return signal.requested() || file_.requested(step) || (spot_ && spot_->noticed());
  }

  StopSignal signal;

 private:
  StopFile file_;
  std::unique_ptr<SpotWatch> spot_;
};

}  // namespace tandem
