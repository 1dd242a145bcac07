// Records a Trace of this rank: phases and ranges of the compute stream, collectives, ranges of
// other threads, memory.
//
// Times on a GPU are those of events in its streams, which are read when a step has settled. So
// recording adds no wait, and changes no bit.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "src/device/memory.h"
#include "src/trace/flight_log.h"
#include "src/trace/trace.h"

namespace tandem {

class Recorder {
 public:
  // Whether this process records now.
  bool is_on() const { return is_on_; }

  // From now on, `timeline` gets the ranges of the calling thread, too. The references must outlive
  // the recording. begin() and end() wait for the stream.
  void begin(Stream& compute, Timeline& timeline, const Memory& memory);
  // With the bounds of the GPU's clock in `first` and `last`, and nothing else there.
  Trace end();

  // Forgets what it recorded: the references of begin() are no more.
  void abandon() { is_on_ = false; }

  // A step that has settled, with all of its timeline.
  void add_step(int64_t number, const Timeline& timeline);
  // Any thread that has entered a range, or is back in the one around it.
  void enter_range(const std::string& innermost);
  // A collective that has ended: when by the steady clock, or on a GPU between which events.
  void add(const FlightCollective& collective, TraceSpan span) { add(collective, span, false); }
  void add(const FlightCollective& collective, const Event& first, const Event& last) {
    add(collective, {time_of(first), time_of(last)}, true);
  }

 private:
  // An event of the GPU whose time is known, give or take `bound`.
  struct Anchor {
    Event event{};
    int64_t at = 0, bound = 0;
  };
  Anchor anchor() const;
  int64_t time_of(const Event& event) const;
  void add(const FlightCollective& collective, TraceSpan span, bool on_gpu);

  std::atomic<bool> is_on_ = false;
  std::thread::id thread_;
  Stream* compute_ = nullptr;
  Timeline* timeline_ = nullptr;
  const Memory* memory_ = nullptr;
  Anchor first_, last_;
  std::mutex mutex_;  // of trace_
  Trace trace_;
};

// That of this process.
Recorder& recorder();

int64_t trace_now();  // by the steady clock, in nanoseconds

}  // namespace tandem
