#include "src/trace/stamp.h"

#include <chrono>

namespace tandem {

void stamp(Cpu, int64_t* to) {
  *to = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tandem
