// What a run used: the peak of each class of memory and the bytes that were sent, as every rank
// measured them. report.json in the run's folder keeps the figures of each rank and the starts of
// the run; tables show the ranks.
//
// Bytes sent are counted from the start of the program. A resumed run does not include those of its
// earlier starts.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/dataset.h"
#include "src/device/memory.h"
#include "src/device/ranks/wire_count.h"
#include "src/report/run_start.h"
#include "src/report/writers/metrics_log.h"
#include "src/telemetry/gpu_use.h"
#include "src/weights/run_directory.h"

namespace tandem {

// In bytes. Classes may have their peaks at different times, so the sum of memory_peak may exceed
// peak_bytes.
struct RankUse {
  WireCount wire;
  std::array<int64_t, kMemoryClasses> memory_peak{};  // by MemoryClass
  int64_t peak_bytes = 0;                             // of all classes together
  int64_t reserved_bytes = 0;                         // with free blocks that the pool kept
  // Host memory of the copy that checkpoints are written from; not in peak_bytes.
  int64_t saved_copy_bytes = 0;
  int64_t host_bytes = 0;       // host memory for what train.offload brings there
  std::optional<GpuUse> gpu{};  // since the last logged step; not in report.json

  // The text of a control message; from_text() reads it back.
  std::string text() const;
  static RankUse from_text(std::string_view text);
  bool operator==(const RankUse&) const = default;
};

// The rank that sent the most payload, and the one with the largest peak_bytes; of equals, the
// first. `ranks` must not be empty.
size_t busiest_rank(std::span<const RankUse> ranks);
size_t largest_rank(std::span<const RankUse> ranks);

// Objects for metrics.jsonl, with only the kinds of traffic and of memory that occur:
//   {"all_reduce": {"inside": 4096, "between": 0}, ...} and {"parameters": 4096, ...}.
std::vector<Metric> wire_metrics(const WireCount& wire);
std::vector<Metric> memory_metrics(std::span<const int64_t, kMemoryClasses> memory_peak);

struct RunReport {
  int64_t first_step = 0;  // updates that were done before this start
  int64_t step = 0;        // updates done at its end
  int64_t read_ahead = 0;  // the most micro-batches that were ready at once on rank 0
  // In the last step on rank 0; empty where an unused parameter is an error.
  std::optional<int64_t> unused_parameters{};
  // With data.windows = documents; each start writes it anew, so from_json() leaves it out.
  std::optional<PackingCosts> packing{};
  std::vector<RankUse> ranks{};    // empty: no start has ended yet
  std::vector<RunStart> starts{};  // the last one is this

  // {"first_step": 0, "step": 20, "read_ahead": 2, "unused_parameters": 0, "padding": 0.01,
  //  "documents_cut": 7, "ranks": [{"peak_bytes": ..., "saved_copy_bytes": ..., "host_bytes": ...,
  //  "memory": {...},
  //    "collectives": ..., "wire": {...}}, ...], "starts": [...]}, with two spaces a level.
  std::string json() const;
  // Error kData naming `path` when the text is no report.
  static RunReport from_json(const std::string& text, const std::string& path);
  // What the file `path`, if it is there, has of the starts before this one. An end at a later step
  // than `step` counts no more, and a start that has said nothing of its end has died, as this job
  // has the folder for itself.
  static RunReport of_earlier_starts(const std::string& path, int64_t step);
  bool operator==(const RunReport&) const = default;

  // Tables of peak memory and of bytes sent, with a column for each rank. With more than
  // `most_columns` ranks they show only the largest rank (memory) and the busiest one (bytes). The
  // last column of bytes is the busiest rank's mean per step. No newline at the end.
  std::string tables(size_t most_columns) const;
};

// Describes a run by its metrics.jsonl and report.json: lines logged, latest losses, tables.
// Without a report.json the tables show the last line of metrics.jsonl. Empty when there is neither
// file. Error kData when one is damaged.
std::string describe_run(const RunDirectory& directory);

}  // namespace tandem
