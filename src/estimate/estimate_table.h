// What `tandem estimate` shows.
#pragma once

#include <string>
#include <vector>

#include "src/estimate/cost_model.h"
#include "src/estimate/estimate.h"

namespace tandem {

// The configuration with another ZeRO stage and recomputation, or another dist.tensor.
struct EstimateRow {
  Config config;
  Estimate estimate{};
  int64_t largest_micro_batch = 0;
  bool is_given = false;  // the configuration that the user gave

  // Seconds of a step, with its share of an exchange of islands.
  double step_s() const {
    return estimate.step_s + estimate.sync_s / static_cast<double>(config.dist.sync_every);
  }
  // Dollars of train.steps steps on whole nodes.
  double usd(const Job& job) const;
  bool fits(const Job& job) const { return estimate.peak_bytes <= job.hardware.memory_bytes; }
  std::string recompute() const { return config.train.recompute ? "block" : "none"; }
  std::string setting() const {
    return str("dist.zero = ", config.dist.zero, " with train.recompute = ", recompute());
  }
};

// `rows`: without and with recomputation for each ZeRO stage; one of them is the given one. After
// these come rows that differ from it in dist.tensor alone. Stages with equal figures share a line.
// No line is longer than 100 columns; no newline at the end.
std::string estimate_text(const std::vector<EstimateRow>& rows, const DatasetInfo& data,
                          const Job& job);
// One JSON object with an entry for each row.
std::string estimate_json(const std::vector<EstimateRow>& rows, const DatasetInfo& data,
                          const Job& job);

// The floor of each op at the rates of `ceilings`. `title` comes before the table.
std::string ops_text(const std::string& title, const std::vector<OpCost>& ops,
                     const Speed& ceilings);

}  // namespace tandem
