// Names a section of the host's work, and the kernels and collectives that it enqueues: for
// profilers (NVTX), and for the flight log. Costs next to nothing when no profiler is attached.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "src/device/dispatch.h"

namespace tandem {

namespace nvtx {
void push(const char* name);
void pop();
void capture(bool on);
}  // namespace nvtx

class ProfilerRange {
 public:
  // Gets the name of a thread's innermost range after each begin and end, on that thread.
  using Listener = std::function<void(const std::string& innermost)>;

  explicit ProfilerRange(const std::string& name) { begin(name); }
  ~ProfilerRange() { end(); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

  // For ranges that do not match a scope. Ranges nest.
  static void begin(const std::string& name) {
    names_.push_back(name);
    if constexpr (kHasCuda) {
      nvtx::push(name.c_str());
    }
    tell();
  }
  static void end() {
    names_.pop_back();
    if constexpr (kHasCuda) {
      nvtx::pop();
    }
    tell();
  }

  // From now on, or no longer: what a profiler shows that was told to wait for this, such as
  // nsys profile --capture-range=cudaProfilerApi. Call it only where there is a GPU.
  static void capture([[maybe_unused]] bool on) {
    if constexpr (kHasCuda) {
      nvtx::capture(on);
    }
  }

  // The name of the innermost range of this thread; "" outside of all.
  static const std::string& innermost() { return names_.back(); }
  // Call it while no other thread begins or ends a range.
  static void listen(Listener listener) { listener_ = std::move(listener); }

 private:
  static void tell() {
    if (listener_) {
      listener_(innermost());
    }
  }

  static inline thread_local std::vector<std::string> names_{""};
  static inline Listener listener_;
};

}  // namespace tandem
