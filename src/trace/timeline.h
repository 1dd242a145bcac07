// Where the time of a rank goes: every moment of its compute stream belongs to one phase.
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

enum class Phase : uint8_t {
  kCompute,        // what is in no other phase
  kCommunication,  // waiting for other ranks: communication that nothing hides
  kData,           // waiting for the loader
  kOptimizer,      // the verdict on the gradient, and the update
  kSaving,         // a checkpoint holds up training
  kElsewhere,      // validation, and what else belongs to no step
};
inline constexpr size_t kPhases = 6;
// All but kElsewhere. Those before kSaving make up a step.
inline constexpr std::array kStepPhases = {Phase::kCompute, Phase::kCommunication, Phase::kData,
                                           Phase::kOptimizer, Phase::kSaving};
using PhaseSeconds = std::array<double, kPhases>;
std::string_view name_of(Phase phase);  // "compute", "communication", ...

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;

  // From now on, time belongs to `phase`. Returns the phase until now. The first call begins the
  // timeline.
  Phase enter(Stream& compute, Phase phase);
  // compute.wait(communication), as kCommunication. On the CPU it blocks the host.
  void wait(Stream& compute, const Event& communication);
  // The same, once for each event: if there is one, waits and takes it away.
  void wait(Stream& compute, std::optional<Event>& communication);
  // Runs work() and returns its result; its time belongs to `phase`. Phases inside kSaving and
  // kElsewhere belong to these.
  template <class F>
  auto during(Stream& compute, Phase phase, F&& work) {
    if (phase_ == Phase::kSaving || phase_ == Phase::kElsewhere) {
      return work();
    }
    // Also when work() throws: a save that fails does not end the run.
    struct Back {
      Timeline& timeline;
      Stream& compute;
      Phase before;
      ~Back() { timeline.enter(compute, before); }
    } const back{*this, compute, enter(compute, phase)};
    return work();
  }
  // Returns the timeline up to now; this one goes on, in the same phase.
  Timeline take(Stream& compute);

  // On a GPU, call it only after the compute stream has passed the last call of the others.
  PhaseSeconds seconds() const;

 private:
  bool begun_ = false;
  Phase phase_ = Phase::kCompute;
  Clock::time_point since_{};
  PhaseSeconds host_s_{};
  struct Mark {
    Phase phase;  // from here on
    Event event;
  };
  std::vector<Mark> on_gpu_;
};

}  // namespace tandem
