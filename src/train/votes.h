// What ranks agree on before a step, with one control message: all of the job where islands meet,
// otherwise those of an island.
#pragma once

#include <algorithm>
#include <vector>

#include "comm/mesh.h"
#include "comm/world.h"
#include "src/core/error.h"
#include "src/device/profiler_range.h"
#include "src/trace/flight_log.h"

namespace tandem {

// Of one rank.
struct Votes {
  bool stop = false;     // it was asked to stop
  bool save = false;     // a checkpoint is due by its clock
  bool written = false;  // it has written its file of a checkpoint
  bool lost = false;     // a step was lost (lost_run.h)
  double targets = 0;    // in its share of the global batch
  uint32_t calls = 0;    // FlightLog::take_calls
};

// Of all ranks.
struct Decision {
  bool stop = false;    // a rank was asked to stop
  bool save = false;    // a checkpoint is due by the clock
  bool commit = false;  // every rank has written its file of a checkpoint
  bool lost = false;    // a rank has lost a step
  double targets = 0;   // in the batch of this rank's data group
  bool empty = false;   // the batch of a data group has no targets
  bool alike = true;    // the ranks of each stage called the same collectives of tensors
  bool by_all = true;   // all ranks have agreed, not only those of an island
};

inline constexpr int kMostRanksAlike = 1 << (53 - 2 * FlightLog::kCallsBits);

// Whether that many numbers below 2^kCallsBits are equal, by their sum and the sum of their
// squares: n sum h^2 = (sum h)^2 holds only then (Cauchy-Schwarz). For up to kMostRanksAlike
// numbers both sums are exact in f64, but not these products.
inline bool are_alike(int ranks, double sum, double squares) {
  const auto whole = static_cast<__int128>(sum);
  return ranks * static_cast<__int128>(squares) == whole * whole;
}

// Collective. One message: the votes of all ranks, the number of targets of each data group, and
// for each stage the sums of `calls` and of their squares.
//
// The ranks of a stage call the same collectives in one order, though each in its own groups. The
// groups along an axis have one size, and so have those inside and between nodes, or there are
// none. Arrays have the size of a bucket, which ModelLayout has compared, or of a micro-batch or
// its statistics. Stages may differ: they hold other blocks, and only the island whose exact sums
// do not fit runs its step again. One difference in 2^kCallsBits is not seen.
inline Decision decide(const Votes& votes, const Mesh& mesh) {
  const ProfilerRange range("votes");
  constexpr int kStop = 0, kSave = 1, kWritten = 2, kLost = 3, kTargets = 4;
  const int calls = kTargets + mesh.data_groups(), stage_size = mesh.stage().size();
  require(stage_size <= kMostRanksAlike, "decide: a stage has too many ranks to compare");
  std::vector<double> sums(static_cast<size_t>(calls + 2 * mesh.stages()), 0.0);
  sums[kStop] = votes.stop ? 1 : 0;
  sums[kSave] = votes.save ? 1 : 0;
  sums[kWritten] = votes.written ? 1 : 0;
  sums[kLost] = votes.lost ? 1 : 0;
  sums[kTargets + mesh.data_group()] = votes.targets;
  sums[calls + 2 * mesh.stage_number()] = votes.calls;
  sums[calls + 2 * mesh.stage_number() + 1] = static_cast<double>(votes.calls) * votes.calls;
  sums = mesh.job().sum(sums);
  bool alike = true;
  for (size_t i = static_cast<size_t>(calls); i < sums.size(); i += 2) {
    alike = alike && are_alike(stage_size, sums[i], sums[i + 1]);
  }
  return {.stop = sums[kStop] > 0,
          .save = sums[kSave] > 0,
          .commit = sums[kWritten] == mesh.job().size(),
          .lost = sums[kLost] > 0,
          .targets = sums[kTargets + mesh.data_group()],
          .empty = std::count(sums.begin() + kTargets, sums.begin() + calls, 0.0) > 0,
          .alike = alike};
}

// Collective among an island's data group: it agrees on the targets, and on nothing else.
inline Decision decide_apart(double targets, const Mesh& mesh) {
  const double all = mesh.data().control().sum({&targets, 1})[0];
  return {.targets = all, .empty = all == 0, .by_all = false};
}

// On all ranks that have agreed. Throws Error(kData) if the batch of a step that has one is empty;
// an AgreedError if all ranks know. If ranks called different collectives, rank 0 says which, and
// the process ends with code 70.
void require_good(const Decision& agreed, bool has_batch, int64_t step, World& world);

}  // namespace tandem
