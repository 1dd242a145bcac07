// What `tandem bench links` measures: the collectives of training, inside nodes, between nodes and
// over all ranks. And the file in which `tandem estimate --machine` reads the result.
//
// Algorithm and bus bandwidth are those of nccl-tests (PERFORMANCE.md there): bytes / seconds, and
// that times 2 (n - 1) / n for all_reduce, (n - 1) / n for the others. `bytes` is the size of the
// whole array.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "comm/link_probe.h"
#include "comm/mesh.h"
#include "comm/transport/dry_collectives.h"

namespace tandem {

struct MeasuredGroup {
  std::string scope;  // "inside", "between", "all"
  int ranks = 0;      // of each group
  int groups = 0;     // that were measured at the same time
  std::array<std::vector<LinkSample>, kMeasuredCollectives.size()> samples{};
};

// Collective. Arrays of 4 KiB up to `largest` bytes, as sample_link() measures them. A scope of one
// rank is left out, and "all" if it equals another. `compute`: its device holds the arrays. All
// ranks get the same bits. Throws Error(kConfig) if nodes have different numbers of ranks, or if
// there is 1 rank.
std::vector<MeasuredGroup> measure_links(const Mesh& mesh, const std::vector<int>& node_of_rank,
                                         const Stream& compute, int64_t largest);

// Two lines, one for short and one for long messages: of all places to part them, that with the
// least sum of squared relative errors, both as fit_link() finds them. Each line needs samples of
// two sizes; with less than four sizes it is one line. `bytes` and `seconds` of one collective.
Link fit_two_lines(std::vector<LinkSample> samples);

// The link that the collectives of a group show, by the model of DryCollectives: those around a
// ring together, then the all_to_all.
Link link_of(const MeasuredGroup& group);

// A machine as it was measured. Null: it has no such link.
struct MeasuredMachine {
  std::optional<Link> inside, between;
};

MeasuredMachine machine_of(const std::vector<MeasuredGroup>& groups);

// JSON, with all samples, fits and links. `about`: what was measured, "8 ranks, 4 on each node".
std::string machine_text(const std::vector<MeasuredGroup>& groups, const std::string& about);
// The links of such a text. Throws Error(kData) that begins with `path`, and names the key, if it
// is something else, has impossible figures, or if its links do not follow from its samples.
MeasuredMachine machine_from_text(const std::string& text, const std::string& path);

}  // namespace tandem
