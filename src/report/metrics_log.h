// metrics.jsonl: the numbers of a run, one JSON object a line, for programs to read.
//
// Lines are handed to the system as they are written, so that `tail -f` and a later crash see whole
// lines. Written by one process. Failures throw Error(kData) naming the file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "src/io/file.h"

namespace tandem {

struct Metric {
  std::string key;
  std::variant<int64_t, double, std::vector<Metric>> value;  // the last: an object within
};

// {"step":10,"loss":2.5,"memory":{"parameters":64}}: without a newline. f64 are printed so that
// reading gives the same bits; those that are not finite become null.
std::string to_json_line(std::span<const Metric> metrics);

class MetricsLog {
 public:
  // Opens `path` to go on at its end; creates it when it is missing.
  explicit MetricsLog(const std::string& path);

  // One line. By convention the first metric is "step".
  void append(std::span<const Metric> metrics);
  void append(std::initializer_list<Metric> metrics) {
    append(std::span(metrics.begin(), metrics.size()));
  }

 private:
  FileWriter file_;
};

struct TruncatedLines {
  int64_t kept = 0;
  int64_t discarded = 0;  // moved to the other file
  int64_t broken = 0;     // not a JSON object with a "step", such as a line cut short: dropped
};

// Prepares the log at `path` for a run that goes on after `step`: lines of later steps move to the
// end of metrics.discarded.jsonl beside it (for "metrics.jsonl"; in general, STEM.discarded.EXT).
// Fine when there is no log. A crash in here loses no line.
TruncatedLines truncate_after(const std::string& path, int64_t step);

}  // namespace tandem
