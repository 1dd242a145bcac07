#include "comm/sharding/launch_order.h"

#include <utility>

#include "src/core/error.h"

namespace tandem {

void LaunchOrder::begin(std::vector<bool> takes_part) {
  require(left_ == 0, "LaunchOrder: begin() before finish()");
  waits_ = takes_part;
  takes_part_ = std::move(takes_part);
  left_ = static_cast<int64_t>(takes_part_.size());
}

void LaunchOrder::ready(int64_t index) {
  require(index >= 0 && index < static_cast<int64_t>(waits_.size()) && waits_[index],
          [&] { return str("LaunchOrder: ", index, " is ready twice, or does not take part"); });
  waits_[index] = false;
  start_ready();
}

void LaunchOrder::start_ready() {
  while (left_ > 0 && !waits_[left_ - 1]) {
    --left_;
    if (takes_part_[left_]) {
      start_(left_);
    }
  }
}

void LaunchOrder::finish() {
  waits_.assign(waits_.size(), false);
  start_ready();
}

}  // namespace tandem
