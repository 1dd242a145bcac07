// Where the time of a rank goes: every moment of its compute stream belongs to one part.
//
// The parts add up to the whole time. On a GPU they are measured by events of the stream, so work
// that hides behind earlier work of the stream takes no time here. On the CPU, where the stream is
// the host thread, by the host's clock.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "src/device/stream.h"

namespace tandem {

enum class Part : uint8_t {
  kCompute,        // what is in no other part
  kCommunication,  // waiting for other ranks: communication that nothing hides
  kData,           // waiting for the loader
  kOptimizer,      // the verdict on the gradient, and the update
  kSaving,         // a checkpoint holds up training
  kElsewhere,      // validation, and what else belongs to no step
};
inline constexpr size_t kParts = 6;
// All but kElsewhere. Those before kSaving make up a step.
inline constexpr std::array kStepParts = {Part::kCompute, Part::kCommunication, Part::kData,
                                          Part::kOptimizer, Part::kSaving};
using PartSeconds = std::array<double, kParts>;
std::string_view name_of(Part part);  // "compute", "communication", ...

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;

  // From now on, time belongs to `part`. Returns the part until now. The first call begins the
  // timeline.
  Part enter(Stream& compute, Part part);
  // compute.wait(communication), as kCommunication. On the CPU it blocks the host.
  void wait(Stream& compute, const Event& communication);
  // The same, once for each event: if there is one, waits and takes it away.
  void wait(Stream& compute, std::optional<Event>& communication);
  // Runs work() and returns its result; its time belongs to `part`. Parts inside kSaving and
  // kElsewhere belong to these.
  template <class F>
  auto during(Stream& compute, Part part, F&& work) {
    if (part_ == Part::kSaving || part_ == Part::kElsewhere) {
      return work();
    }
    // Also when work() throws: a save that fails does not end the run.
    struct Back {
      Timeline& timeline;
      Stream& compute;
      Part before;
      ~Back() { timeline.enter(compute, before); }
    } const back{*this, compute, enter(compute, part)};
    return work();
  }
  // Returns the timeline up to now; this one goes on, in the same part.
  Timeline take(Stream& compute);

  // On a GPU, call it only after the compute stream has passed the last call of the others.
  PartSeconds seconds() const;

 private:
  bool begun_ = false;
  Part part_ = Part::kCompute;
  Clock::time_point since_{};
  PartSeconds host_s_{};
  struct Mark {
    Part part;  // from here on
    Event event;
  };
  std::vector<Mark> on_gpu_;
};

}  // namespace tandem
