// What all ranks agree on before a step, with one control message.
#pragma once

#include <algorithm>
#include <vector>

#include "comm/mesh.h"
#include "src/device/profiler_range.h"

namespace tandem {

// Of one rank.
struct Votes {
  bool stop = false;     // it was asked to stop
  bool save = false;     // a checkpoint is due by its clock
  bool written = false;  // it has written its file of a checkpoint
  double targets = 0;    // in its share of the global batch
};

// Of all ranks.
struct Decision {
  bool stop = false;    // a rank was asked to stop
  bool save = false;    // a checkpoint is due by the clock
  bool commit = false;  // every rank has written its file of a checkpoint
  double targets = 0;   // in the global batch of this rank's data group
  bool empty = false;   // the global batch of a data group has no targets
};

// Collective. One message: the votes of all ranks, then the number of targets of each data group.
inline Decision decide(const Votes& votes, const Mesh& mesh) {
  const ProfilerRange range("votes");
  constexpr int kStop = 0, kSave = 1, kWritten = 2, kTargets = 3;
  std::vector<double> sums(static_cast<size_t>(kTargets + mesh.data_groups()), 0.0);
  sums[kStop] = votes.stop ? 1 : 0;
  sums[kSave] = votes.save ? 1 : 0;
  sums[kWritten] = votes.written ? 1 : 0;
  sums[kTargets + mesh.data_group()] = votes.targets;
  sums = mesh.job().sum(sums);
  return {.stop = sums[kStop] > 0,
          .save = sums[kSave] > 0,
          .commit = sums[kWritten] == mesh.job().size(),
          .targets = sums[kTargets + mesh.data_group()],
          .empty = std::ranges::count(sums.begin() + kTargets, sums.end(), 0.0) > 0};
}

}  // namespace tandem
