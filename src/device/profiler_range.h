// Names a section of the host's work, and the kernels that it enqueues, for profilers (NVTX). Costs
// next to nothing when no profiler is attached.
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

  // For ranges that do not match a scope. Ranges nest.
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
