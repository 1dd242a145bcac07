// Where the time of a rank goes: every moment of its compute stream belongs to one phase.
//
// The parts add up to the whole time. On a GPU they are measured by events of the stream, so work
// that hides behind earlier work of the stream takes no time here. The host's clock measures them
// on the CPU, where the stream is the host thread, and waits of the host that leave a GPU's stream
// without work. A graph has marks of its own: the GPU stores its clock at each, and the timeline of
// a step that launches the graph takes them in.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/device/stream.h"
#include "src/device/tensor.h"

namespace tandem {

enum class Phase : uint8_t {
  kCompute,        // what is in no other phase
  kCommunication,  // waiting for other ranks: communication that nothing hides
  kData,           // waiting for the loader
  kOptimizer,      // the verdict on the gradient, and the update
  kSaving,         // a checkpoint holds up training
  kElsewhere,      // validation, and what else belongs to no step
  kCopy,           // waiting for an offloaded update, or for copies between host and device
};
inline constexpr size_t kPhases = 7;
// All but kElsewhere. All but kSaving make up a step.
inline constexpr std::array kStepPhases = {Phase::kCompute, Phase::kCommunication,
                                           Phase::kData,    Phase::kOptimizer,
                                           Phase::kCopy,    Phase::kSaving};
using PhaseSeconds = std::array<double, kPhases>;
std::string_view name_of(Phase phase);  // "compute", "communication", ...

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;

  // A point of the compute stream, and what the time after it belongs to.
  struct Mark {
    Phase phase{};
    std::string range{};   // "block 3 backward"; "" outside of all ranges
    bool on_host = false;  // without an event
    Event event{};
    Clock::time_point host{};
    int64_t stamp = -1;  // inside a graph: its element of `stamps`, without event and host
    Tensor stamps{};     // i64, nanoseconds, in host memory

    // Returns 0 if only the earlier one is in a graph, because their clocks differ.
    double seconds_since(const Mark& earlier) const;
  };

  Timeline() = default;
  // Makes the timeline of a graph. `stamps`: i64, in the memory of the device, an element for each
  // mark; there may be more.
  explicit Timeline(Tensor stamps) : stamps_(std::move(stamps)) {}

  // From now on, time belongs to `phase`. Returns the phase until now. The first call begins the
  // timeline. `on_host`: as in during().
  Phase enter(Stream& compute, Phase phase, bool on_host = false);
  // From now on, time belongs to this range of the same phase.
  void enter_range(Stream& compute, const std::string& range);
  // compute.wait(event), as `phase`. On the CPU it blocks the host.
  void wait(Stream& compute, const Event& event, Phase phase = Phase::kCommunication);
  // The same, once for each event: if there is one, waits and takes it away.
  void wait(Stream& compute, std::optional<Event>& event, Phase phase = Phase::kCommunication);
  // Runs work() and returns its result; its time belongs to `phase`. Phases inside kSaving and
  // kElsewhere belong to these. `on_host`: work() waits on the host, and asks nothing of the
  // stream. On a GPU this takes no event, but the stream needs one before it gets other work:
  // enter().
  template <class F>
  auto during(Stream& compute, Phase phase, F&& work, bool on_host = false) {
    if (phase_ == Phase::kSaving || phase_ == Phase::kElsewhere) {
      return work();
    }
    // Also when work() throws: a save that fails does not end the run.
    struct Back {
      Timeline& timeline;
      Stream& compute;
      Phase before;
      bool on_host;
      ~Back() { timeline.enter(compute, before, on_host); }
    } const back{*this, compute, enter(compute, phase, on_host), on_host};
    return work();
  }
  // Returns the timeline up to now; this one goes on, in the same phase.
  Timeline take(Stream& compute);

  // Takes in the marks of a graph that was launched. `stamps`: a copy of its stamps in host memory,
  // which the stream will have made before the timeline is read. A mark must follow.
  void append(const Timeline& graph, const Tensor& stamps);

  // In the order of the stream.
  const std::vector<Mark>& marks() const { return marks_; }
  // When the stream passed each mark, in seconds since the first. On a GPU, call it and seconds()
  // only after the compute stream has passed the last mark.
  std::vector<double> times() const;
  PhaseSeconds seconds() const;

 private:
  Phase mark(Stream& compute, Phase phase, bool on_host = false);

  Phase phase_ = Phase::kCompute;
  std::string range_;
  std::vector<Mark> marks_;
  Tensor stamps_{};  // of a graph
};

}  // namespace tandem
