// An ordered queue of work on one device, and events in it.
//
// On the CPU a compute stream runs its work inline on the calling thread, and a background stream
// is one thread that runs submitted functions in order (for communication). A CUDA stream has the
// same functions. A dry stream runs nothing: it adds up how long the work would take.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "src/device/device.h"
#include "src/device/meter.h"

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

class Stream {
 public:
  static Stream compute(Device device);     // CPU: inline
  static Stream background(Device device);  // CPU: a thread; CUDA: a stream of high priority
  // Simulates a stream of `device`, which need not exist. Nothing runs; only its clock advances: by
  // the work of calls, and by wait(), up to the time of the event. All its events count as reached.
  static Stream dry(Device device, const Speed& speed);
  // A stream for work beside `compute`, on its device: a background stream, or beside a dry stream
  // one of the same speed.
  static Stream beside(const Stream& compute);
  // One for copies in one direction between the host and the device. On a dry one a copy, which
  // reads as many bytes as it writes, takes the time that they need to pass the link once.
  static Stream copying(const Stream& compute);
  Stream(Stream&&) noexcept;
  ~Stream();  // waits for submitted work; exceptions nobody waited for are dropped

  Device device() const { return device_; }
  CUstream_st* handle() const;  // of a CUDA stream; throws for other streams
  bool is_captured() const;     // whether its work is kept for a Graph now
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
  // From now on synchronize() waits by this, which may have a deadline.
  void synchronize_by(std::function<void(const Event&)> wait) { wait_ = std::move(wait); }

  // Calls of kernels on this stream go through the meter from now on; null: they run.
  void report_to(Meter* meter) { meter_ = meter; }
  Meter* meter() const { return meter_; }
  bool is_dry() const { return clock_ != nullptr; }
  DryClock& clock() const;  // of a dry stream, whose meter it is

 private:
  class Queue;
  class Inline;
  class Background;
  class OnGpu;
  class Dry;
  Stream(Device device, std::unique_ptr<Queue> queue);
  static Stream on_gpu(bool high_priority);
  Device device_;
  std::unique_ptr<Queue> queue_;
  DryClock* clock_ = nullptr;  // in the queue of a dry stream
  Meter* meter_ = nullptr;
  std::function<void(const Event&)> wait_;  // null: Event::synchronize()
};

}  // namespace tandem
