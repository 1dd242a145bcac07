// Dollars of a run: whole nodes, from when the program was loaded, over all starts of the run.
#pragma once

#include <string>
#include <vector>

#include "src/report/run_start.h"
#include "src/report/writers/metrics_log.h"
#include "src/settings/config.h"
#include "src/weights/run_directory.h"

namespace tandem {

class RunCost {
 public:
  // `earlier`: of the same run. What they cost is the most that they, or the lines of
  // metrics.jsonl, say; so it must be made before lines of later steps move aside. What a start
  // that died did after its last line is not known. Error kData when metrics.jsonl cannot be read.
  RunCost(const Config& config, const RunDirectory& directory, const std::vector<RunStart>& earlier,
          size_t nodes);

  bool is_known() const { return usd_per_hour_ > 0; }  // run.usd_per_node_hour is given
  double usd() const;                                  // until now
  // For a line of metrics.jsonl: "usd", and "usd_per_1e9_tokens" or "usd_per_1e6_images". None if
  // it is not known.
  std::vector<Metric> metrics(int64_t units) const;
  // "12.34 dollars on 2 nodes at 21.957642 an hour; 45.60 for 10^9 tokens".
  std::string text(int64_t units) const;

 private:
  PriceUnit unit_;
  size_t nodes_;
  double usd_per_hour_;  // of all nodes
  double before_ = 0;    // of earlier starts
};

}  // namespace tandem
