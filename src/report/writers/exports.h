// Figures for monitors outside of the run: a file for Prometheus, as node exporter's textfile
// collector reads it, and lines of CloudWatch's embedded metric format (EMF).
//
// Training must not wait for a monitor. What a full disk or a pipe that nobody reads does not take
// at once is lost: the first loss is said, all are counted, and the count is said at the end.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tandem {

// ("run", "book"): labels of Prometheus, dimensions of CloudWatch.
using Labels = std::vector<std::pair<std::string, std::string>>;

struct Gauge {
  std::string name;  // "gpu_power_watts"; one that ends with _total only grows
  double value = 0;
};

// Prometheus' text format, version 0.0.4, without times: for each gauge
//   # TYPE tandem_gpu_power_watts gauge
//   tandem_gpu_power_watts{run="book",rank="3"} 400.5
std::string prometheus_text(const std::vector<Gauge>& gauges, const Labels& labels);

struct EmfMetric {
  std::string name;  // "StepTime"
  std::string unit;  // one of CloudWatch's: "Milliseconds", "Percent", "Count", "None"
  double value = 0;
};

// A line of the namespace Tandem, with its end: {"_aws": {"Timestamp": 1790000000000,
// "CloudWatchMetrics": [...]}, "Run": "book", "StepTime": 812.5}. Metrics that are not finite are
// left out; empty if all are. The dimensions are one set.
std::string emf_line(double unix_s, const Labels& dimensions,
                     const std::vector<EmfMetric>& metrics);

// What one rank tells.
class Exports {
 public:
  // `folder`: of files for Prometheus, and made if it is missing; there this one is called `name`.
  // `emf`: a file or pipe for lines. Empty: not wanted.
  Exports(const std::string& folder, const std::string& name, const std::string& emf);
  // Removes the file for Prometheus.
  ~Exports();
  Exports(const Exports&) = delete;
  Exports& operator=(const Exports&) = delete;

  bool wants_prometheus() const { return !file_.empty(); }
  bool wants_emf() const { return !emf_.empty(); }
  // Nothing happens where they are not wanted. The line must have its end; an empty one is none.
  void replace_file(const std::string& text);
  void append_line(const std::string& line);

 private:
  void lose(const std::string& path, const std::string& why);

  std::string file_, emf_;  // empty: not wanted
  bool is_cut_ = false;     // the end of the last line is missing
  int64_t lost_ = 0;
};

}  // namespace tandem
