// metrics.jsonl: the numbers of a run, one JSON object per line, for programs to read.
//
// Each line goes to the operating system at once, so that `tail -f` sees whole lines and a crash of
// the program loses none. Only one process writes. Failures throw Error(kData) naming the file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "src/io/file.h"

namespace tandem {

struct Metric {
  std::string key;
  // A vector of metrics is a nested object, one of numbers an array.
  std::variant<int64_t, double, bool, std::string, std::vector<Metric>, std::vector<double>,
               std::vector<int64_t>>
      value;
};

// Seconds since 1970.
double unix_now_s();

// {"step":10,"loss":2.5,"memory":{"parameters":64}}, without a newline. A double reads back with
// the same bits; one that is not finite becomes null.
std::string to_json_line(const std::vector<Metric>& metrics);

class MetricsLog {
 public:
  // Opens `path` to append to it, or creates it. `folder`: as in file.h.
  explicit MetricsLog(const std::string& path, int folder = AT_FDCWD);

  // One line, in a new file if somebody has removed the log. By convention the first metric is
  // "step".
  void append(const std::vector<Metric>& metrics);

 private:
  int folder_;
  std::unique_ptr<FileWriter> file_;
};

// Prepares the log STEM.EXT at `path` for a run that resumes after `step`: lines of later steps
// move to the end of STEM.discarded.EXT beside it (metrics.discarded.jsonl), and so does that of a
// validation of `step` itself, unless `validated`. Drops what is no JSON object with a "step", such
// as a line cut short. Does nothing when there is no log. A crash in this function loses no line.
void truncate_after(const std::string& path, int64_t step, bool validated);

// Calls visit(line) for each line that is a JSON object with a whole number as its "step". Others
// are passed over, such as a last line that is still being written.
void read_metrics(const std::string& path,
                  const std::function<void(const nlohmann::ordered_json& line)>& visit);

// A number of such a line; `otherwise` if it has none of this name.
double number_in(const nlohmann::ordered_json& line, const char* key, double otherwise);

}  // namespace tandem
