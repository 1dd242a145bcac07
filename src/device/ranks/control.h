// Small messages that control a job: votes, texts, errors. Calls block the caller, need no GPU, and
// count as Traffic::kControl. Every rank must make the same calls in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/device/ranks/wire_count.h"

namespace tandem {

// How the steady clock of rank 0 compares with that of this rank, in nanoseconds: when this one
// shows `at`, that one shows at + offset, give or take `bound`.
struct ClockReading {
  int64_t at = 0, offset = 0, bound = 0;
};

class Control {
 public:
  virtual ~Control() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual std::vector<double> sum(
      std::span<const double> values) = 0;  // added in rank order: all ranks get the same bits
  virtual std::string broadcast(std::string text, int root) = 0;
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;  // by rank
  virtual void barrier() = 0;
  // Asks rank 0 for the time 16 times, and returns the answer that took least time (Cristian 1989,
  // "Probabilistic clock synchronization").
  virtual ClockReading read_clock() = 0;

  // As in Collectives.
  virtual std::unique_ptr<Control> split(std::span<const int> colors) = 0;
  virtual void set_nodes(std::span<const int> node_of_rank) = 0;
  virtual WireCount wire() const = 0;
};

}  // namespace tandem
