// What a run used: the peak of each class of memory and the bytes that were sent, as every rank
// measured them. report.json in the run's folder keeps the figures of each rank, tables show them.
//
// Bytes sent are those since the start of the program: of a run that went on, the earlier starts'
// are not among them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/wire_count.h"
#include "src/device/memory.h"
#include "src/report/metrics_log.h"
#include "src/train/run_directory.h"

namespace tandem {

// In bytes. A class can have its peak at another time than the others: the sum of memory_peak may
// exceed peak_bytes.
struct RankUse {
  WireCount wire;
  std::array<int64_t, kMemoryClasses> memory_peak{};  // by MemoryClass
  int64_t peak_bytes = 0;                             // of all classes together

  // As a control message carries it. from_text() gives what text() was made from.
  std::string text() const;
  static RankUse from_text(std::string_view text);
  bool operator==(const RankUse&) const = default;
};

// The rank that sent the most payload, and the one with the largest peak_bytes: the first of
// equals. At least one rank.
size_t busiest_rank(std::span<const RankUse> ranks);
size_t largest_rank(std::span<const RankUse> ranks);

// For metrics.jsonl, traffics and classes that occur:
//   {"all_reduce": {"inside": 4096, "between": 0}, ...} and {"parameters": 4096, ...}.
std::vector<Metric> wire_metrics(const WireCount& wire);
std::vector<Metric> memory_metrics(std::span<const int64_t, kMemoryClasses> memory_peak);

struct RunReport {
  int64_t first_step = 0;  // updates that were done before this start
  int64_t step = 0;        // updates done at its end
  int64_t read_ahead = 0;  // the most micro-batches that lay ready at once on rank 0
  std::optional<int64_t> unused_parameters{};  // in the last step on rank 0; none: that is an error
  std::vector<RankUse> ranks;

  // {"first_step": 0, "step": 20, "read_ahead": 2, "unused_parameters": 0, "ranks":
  //  [{"peak_bytes": ..., "memory": {...}, "collectives": ..., "wire": {...}}, ...]}, with two
  // spaces a level.
  std::string json() const;
  // Error kData naming `path` when the text is not one.
  static RunReport from_json(const std::string& text, const std::string& path);
  bool operator==(const RunReport&) const = default;

  // Tables of peak memory and of bytes sent, a column for each rank; with more than `most_columns`
  // ranks, of the largest and the busiest one alone. The last column of bytes is the mean over
  // steps of the busiest rank. No newline at the end.
  std::string tables(size_t most_columns) const;
};

// What metrics.jsonl and report.json tell of a run: steps logged, the latest losses, the tables;
// without the report of the end, the tables hold the last line of metrics.jsonl. Empty when there
// is neither file. Error kData when one is damaged.
std::string describe_run(const RunDirectory& directory);

}  // namespace tandem
