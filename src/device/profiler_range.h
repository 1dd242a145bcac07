// Names a stretch of the host's work, and the kernels it enqueues, for profilers (NVTX). Free when
// none is attached.
#pragma once

#include <string>

#include "src/device/dispatch.h"

namespace tandem {

namespace nvtx {
void push(const char* name);
void pop();
}  // namespace nvtx

class ProfilerRange {
 public:
  explicit ProfilerRange(const std::string& name) { begin(name); }
  ~ProfilerRange() { end(); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

  // For ranges that are no scope; they nest.
  static void begin(const std::string& name) {
    if constexpr (kHasCuda) {
      nvtx::push(name.c_str());
    }
  }
  static void end() {
    if constexpr (kHasCuda) {
      nvtx::pop();
    }
  }
};

}  // namespace tandem
