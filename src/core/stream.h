// An ordered queue of work on one device, and marks in it.
//
// On the CPU a compute stream runs its work inline on the calling thread, and a background stream
// is one thread that runs submitted functions in order (communication lives there). A CUDA stream
// has the same verbs.
#pragma once

#include <functional>
#include <memory>

#include "src/core/device.h"

struct CUstream_st;  // what CUDA's stream handles point to

namespace tandem {

// A point in a stream: everything enqueued before record().
class Event {
 public:
  Event() = default;  // already reached
  bool reached() const;
  // Blocks the host; rethrows what the stream's work threw before this point.
  void synchronize() const;
  // Between two points of CUDA streams that have been reached; negative when this one came first.
  double seconds_since(const Event& earlier) const;

 private:
  friend class Stream;
  class State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  static Stream compute(Device device);     // CPU: inline
  static Stream background(Device device);  // CPU: one thread, first in first out; CUDA: of high
                                            // priority
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

 private:
  class Queue;
  class Inline;
  class Background;
  class OnGpu;
  Stream(Device device, std::unique_ptr<Queue> queue);
  Device device_;
  std::unique_ptr<Queue> queue_;
};

}  // namespace tandem
