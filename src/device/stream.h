// An ordered queue of work on one device, and events in it.
//
// On the CPU a compute stream runs its work inline on the calling thread, and a background stream
// is one thread that runs submitted functions in order (for communication). A CUDA stream has the
// same functions. A dry stream runs nothing: it adds up how long the work would take.
#pragma once

#include <functional>
#include <memory>
#include <source_location>

#include "src/device/device.h"

struct CUstream_st;  // what CUDA's stream handles point to

namespace tandem {

// A point in a stream: everything enqueued before record().
class Event {
 public:
  Event() = default;  // already reached
  bool reached() const;
  // Blocks the host; rethrows what the stream's work threw before this point.
  void synchronize() const;
  // Both events must be from record_time() of CUDA streams and reached, or both of dry streams.
  // Negative when this event came first.
  double seconds_since(const Event& earlier) const;

 private:
  friend class Stream;
  class State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// How much kernels do, for estimating their time.
struct Work {
  double flops = 0;      // of matrix products and convolutions; a multiply-add counts two
  double attention = 0;  // the same, of attention
  double bytes = 0;      // read and written by all kernels
  double launches = 0;   // kernels
  Work& operator+=(const Work& other);
};

// How fast a device works.
struct Speed {
  double flops_per_s = 1, bytes_per_s = 1;
  double launch_s = 0;               // overhead of one kernel
  double attention_flops_per_s = 1;  // forward and backward together
  double seconds(const Work& work) const;
};

// Sees each call of kernels on a stream (on_device), to measure it. `place` is what calls them.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void begin(const std::source_location& place) = 0;
  virtual void end() = 0;
};

class Stream {
 public:
  static Stream compute(Device device);     // CPU: inline
  static Stream background(Device device);  // CPU: a thread; CUDA: a stream of high priority
  // Simulates a stream of `device`, which need not exist. Nothing runs; only a clock advances: by
  // charge(), by spend(), and by wait(), up to the time of the event. All its events count as
  // reached.
  static Stream dry(Device device, const Speed& speed);
  Stream(Stream&&) noexcept;
  ~Stream();  // waits for submitted work; exceptions nobody waited for are dropped

  Device device() const { return device_; }
  CUstream_st* handle() const;  // of a CUDA stream; throws for other streams
  // CPU only: runs `work` after everything enqueued before. A background stream keeps an exception
  // of `work`: it skips later work, and synchronize() of the stream and of its later events
  // rethrows the exception. A compute stream throws it here.
  void submit(std::function<void()> work);
  Event record();
  Event record_time();  // the same, for seconds_since()
  // Later work of this stream starts after the event. A CUDA stream that waits for an event of a
  // CPU stream blocks the host until then.
  void wait(const Event& event);
  void synchronize();  // blocks the host until all work is done; rethrows

  // From now on `observer` sees the calls of kernels on this stream; null: no one does.
  void observe(CallObserver* observer) { observer_ = observer; }
  CallObserver* observer() const { return observer_; }

  bool is_dry() const { return dry_ != nullptr; }
  // Adds work to the clock of a dry stream; other streams ignore it.
  void charge(const Work& work) const {
    if (dry_) {
      charge_clock(work);
    }
  }
  // The time and work of a dry stream since it was made.
  struct Clock {
    double now_s = 0;
    double waited_s = 0;  // the part of now_s spent waiting for other streams
    Work work{};
  };
  const Clock& clock() const;
  void spend(double seconds);  // advances the clock

 private:
  class Queue;
  class Inline;
  class Background;
  class OnGpu;
  class Dry;
  Stream(Device device, std::unique_ptr<Queue> queue);
  static Stream on_gpu(bool high_priority);
  void charge_clock(const Work& work) const;
  Device device_;
  std::unique_ptr<Queue> queue_;
  Dry* dry_ = nullptr;  // the queue of a dry stream
  CallObserver* observer_ = nullptr;
};

}  // namespace tandem
