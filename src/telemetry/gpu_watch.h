// A thread that looks at the GPU of this rank again and again, for the metrics and for warnings.
//
// A library of the driver may hang where the GPU does. So only the thread calls it, nobody waits
// for the thread while training, and a thread that hangs is left behind.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "src/device/device.h"
#include "src/telemetry/gpu_use.h"

namespace tandem {

class GpuWatch {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    std::string nvml = "libnvidia-ml.so.1";   // the library
    std::string gpu;                          // as NvmlGpu takes it
    std::chrono::duration<double> period{1};  // between samples
    int rank = 0;                             // with the host: for messages
    std::string host;
    bool says_why_not = true;        // if there is no library or no such GPU
    std::function<void()> on_xid{};  // called at each, by the thread
  };

  // Begins. What goes wrong, an Xid of each number, the first uncorrected ECC error and the first
  // throttling are lines on standard error, with rank, host and GPU.
  explicit GpuWatch(const Options& options);
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;
  // Waits until the thread has left the library. If the library's last answer is kLeave ago, leaves
  // the thread behind, and the process will exit without what exit() calls first.
  ~GpuWatch();
  static constexpr std::chrono::milliseconds kLeave{300};

  const std::string& gpu() const;  // as it was given
  // What the GPU did since the last call; empty where there is none to look at. Does not wait for
  // the library. If that has not answered for ten periods and a second, a line on standard error
  // says so, once.
  std::optional<GpuUse> take();

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread has it, too
};

// The watch of this process's GPU. Null: on a CPU, or if the period, in seconds, is 0.
// `local_rank`: among the ranks of the host.
//
// TANDEM_NVML=FILE in the environment is a stand-in for the library, for tests. Then a rank on a
// CPU watches the GPU that it would compute on: the entry `local_rank` of CUDA_VISIBLE_DEVICES, or
// of all GPUs.
std::unique_ptr<GpuWatch> watch_gpu(double period_s, Device device, int rank, int local_rank,
                                    const std::string& host, std::function<void()> on_xid = {});

}  // namespace tandem
