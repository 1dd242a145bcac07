// One GPU as NVML, NVIDIA's management library, sees it. The library comes with the driver and is
// loaded when it is used, so that programs run without it.
//
// Functions and structs are those of the NVML API reference, version 13.3. All but the clock
// event reasons, which were called throttle reasons before 12.2, have been there since version 11.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/telemetry/gpu_use.h"

namespace tandem {

// Any call of a member may take as long as the library likes.
class NvmlGpu {
 public:
  // Loads the library; it stays loaded. `gpu`: a PCI address such as "0000:8a:00.0", or a number
  // in NVML's order. Error kConfig says why there is no library or no such GPU.
  NvmlGpu(const std::string& library, const std::string& gpu);

  const std::string& address() const { return address_; }  // on PCI, in NVML's words
  struct Sample {
    // As GpuWindow takes them: without kSamples and kXids. What the library or the GPU does not
    // have is empty.
    GpuUse figures;
    // What holds down the clock of a GPU with work to do: "software power cap, hardware slowdown".
    // Empty if nothing does; a GPU that is idle, or whose clock is set low, does not count.
    std::string throttled_by;
  };
  Sample sample() const;

  // Whether the library reports Xids, the errors that the driver names by numbers.
  bool has_events() const { return events_ != nullptr; }
  // Waits at most so long for an Xid and returns its number. Without events it sleeps.
  std::optional<int64_t> wait_for_xid(std::chrono::milliseconds time);

 private:
  template <class... Arguments>
  int code_of(const char* function, Arguments... arguments) const;
  template <class... Arguments>
  bool call(const char* function, Arguments... arguments) const;
  template <class T>
  std::optional<double> number(const char* function) const;
  std::optional<std::string> throttled_by() const;
  std::optional<double> nvlink_bytes() const;

  void* library_;
  void* gpu_ = nullptr;
  void* events_ = nullptr;
  std::string address_;
};

}  // namespace tandem
