// An ordered queue of work on one device, and marks in it.
//
// On the CPU a compute stream runs its work inline on the calling thread, and a background stream
// is one thread that runs submitted functions in order (communication lives there). A CUDA stream
// has the same verbs.
#pragma once

#include <functional>
#include <memory>

#include "src/core/device.h"

namespace tandem {

// A point in a stream: everything enqueued before record().
class Event {
 public:
  Event() = default;  // already reached
  bool reached() const;
  void synchronize()
      const;  // blocks the host; rethrows what the stream's work threw before this point

 private:
  friend class Stream;
  struct State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  static Stream compute(Device device);     // CPU: inline
  static Stream background(Device device);  // CPU: one thread, first in first out
  Stream(Stream&&) noexcept;
  ~Stream();  // waits for submitted work; exceptions nobody waited for are dropped

  Device device() const { return device_; }
  // Runs `work` after everything enqueued before. An exception it throws is kept: later work is
  // skipped and every later synchronize() or wait() rethrows it.
  void submit(std::function<void()> work);
  Event record();
  void wait(const Event& event);  // later work here starts after that point
  void synchronize();             // blocks the host until all work is done; rethrows

 private:
  struct Queue;
  Stream(Device device, std::unique_ptr<Queue> queue);
  Device device_;
  std::unique_ptr<Queue> queue_;  // null: inline
};

}  // namespace tandem
