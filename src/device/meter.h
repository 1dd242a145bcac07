// What kernels do, and who is told. Each call of kernels says its work (on_device in dispatch.h).
#pragma once

#include <cstdint>
#include <functional>
#include <source_location>

namespace tandem {

// What a call of kernels does, for estimates of its time.
struct Work {
  double flops = 0;      // of matrix products and convolutions; a multiply-add counts two
  double attention = 0;  // the same, of attention
  double bytes = 0;      // read from memory and written to it
  Work& operator+=(const Work& other) {
    flops += other.flops, attention += other.attention, bytes += other.bytes;
    return *this;
  }
};

// The work of kernels that read or write each array once. An array is a tensor, or a gradient that
// is written or added to. What is not there has no bytes.
template <class... Array>
Work touching(const Array&... arrays) {
  return {.bytes = (0.0 + ... + static_cast<double>(arrays.bytes()))};
}

// Stands between a stream and the calls of kernels on it. It gets each call's work, the place that
// calls, and `run`, which enqueues the kernels.
class Meter {
 public:
  virtual ~Meter() = default;
  virtual void call(const Work& work, const std::source_location& place,
                    const std::function<void()>& run) = 0;
};

// How fast a device works.
struct Speed {
  double flops_per_s = 1, bytes_per_s = 1;
  double launch_s = 0;               // overhead of a call of kernels
  double attention_flops_per_s = 1;  // forward and backward together
  double host_bytes_per_s = 1;       // between host and device, each way
};

// The meter of a dry stream. It runs no kernels: a clock advances by the time that they would take.
// Times of one call add up, as if no kernel loaded or stored while it computes. So a small product
// or a short attention reaches fewer FLOP/s than a large one.
class DryClock final : public Meter {
 public:
  explicit DryClock(const Speed& speed) : speed_(speed) {}
  void call(const Work& of_call, const std::source_location&,
            const std::function<void()>&) override {
    work += of_call;
    ++calls;
    advance(of_call.flops / speed_.flops_per_s + of_call.bytes / speed_.bytes_per_s +
            of_call.attention / speed_.attention_flops_per_s + speed_.launch_s);
  }
  void advance(double seconds) { now_s += seconds; }
  const Speed& speed() const { return speed_; }

  double now_s = 0;
  double waited_s = 0;  // the part of now_s spent waiting for other streams
  Work work{};          // of all calls
  int64_t calls = 0;

 private:
  Speed speed_;
};

}  // namespace tandem
