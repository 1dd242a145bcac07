// An ordered queue of work on one device, and marks in it.
//
// On the CPU a compute stream runs its work inline on the calling thread, and a background stream
// is one thread that runs submitted functions in order (communication lives there). A CUDA stream
// has the same verbs. On a dry stream nothing runs: it adds up how long the work would take.
#pragma once

#include <functional>
#include <memory>

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
  // Between two points of CUDA streams that have been reached, or of dry streams; negative when
  // this one came first.
  double seconds_since(const Event& earlier) const;

 private:
  friend class Stream;
  class State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

// What kernels do, as far as their time depends on it.
struct Work {
  double flops = 0;     // of products and convolutions; a multiply-add counts two
  double bytes = 0;     // read and written by everything else
  double launches = 0;  // kernels
  Work& operator+=(const Work& other);
};

// What a device does in a second. The parts of a step's work take their times one after another.
struct Speed {
  double flops_per_s = 1, bytes_per_s = 1;
  double launch_s = 0;  // of one kernel, beside its work
  double seconds(const Work& work) const {
    return work.flops / flops_per_s + work.bytes / bytes_per_s + work.launches * launch_s;
  }
};

class Stream {
 public:
  static Stream compute(Device device);     // CPU: inline
  static Stream background(Device device);  // CPU: one thread, first in first out; CUDA: of high
                                            // priority
  // Stands for a stream of `device`, which need not be there. Nothing runs; only a clock goes on:
  // by charge(), by spend(), and by wait(), to the time of the point that is waited for. Its points
  // have always been reached.
  static Stream dry(Device device, const Speed& speed);
  Stream(Stream&&) noexcept;
  ~Stream();  // waits for submitted work; exceptions nobody waited for are dropped

  Device device() const { return device_; }
  CUstream_st* handle() const;  // a CUDA stream's; an Error for a stream of the CPU
  // On the CPU: runs `work` after everything enqueued before. An exception it throws is kept:
  // later work is skipped and every later synchronize() or wait() rethrows it.
  void submit(std::function<void()> work);
  Event record();
  // Later work here starts after that point. A CUDA stream that waits for an event of the CPU
  // blocks the host until then.
  void wait(const Event& event);
  void synchronize();  // blocks the host until all work is done; rethrows

  bool is_dry() const { return clock_ != nullptr; }
  // Says what is enqueued here: for the clock of a dry stream; no other one listens.
  void charge(const Work& work) const {
    if (clock_) {
      charge_clock(work);
    }
  }
  // Of a dry stream, since its beginning.
  struct Clock {
    double now_s = 0;
    double waited_s = 0;  // part of it in which it stood waiting for other streams
    Work work{};
  };
  const Clock& clock() const;
  void spend(double seconds);  // moves the clock on

 private:
  class Queue;
  class Inline;
  class Background;
  class OnGpu;
  class Dry;
  Stream(Device device, std::unique_ptr<Queue> queue);
  void charge_clock(const Work& work) const;
  Device device_;
  std::unique_ptr<Queue> queue_;
  Dry* clock_ = nullptr;  // the queue of a dry stream
};

}  // namespace tandem
