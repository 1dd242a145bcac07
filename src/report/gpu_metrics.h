// What the GPUs of all ranks did since the last logged step, in the words of metrics.jsonl and of
// the console.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/report/writers/metrics_log.h"
#include "src/telemetry/gpu_use.h"

namespace tandem {

using GpuUses = std::vector<std::optional<GpuUse>>;  // by rank; empty where no GPU is watched

// The figure of the ranks that know it.
std::vector<double> known(const GpuUses& ranks, GpuFigure figure);

// "; its GPU runs at 900 MHz, the median at 1980 MHz", empty if the rank's clock is not known. The
// median is the upper of two middle ones.
std::string clock_beside_median(const GpuUses& ranks, int rank);

class GpuMetrics {
 public:
  // For the next line of metrics.jsonl; none where no rank watches a GPU:
  // "gpu": {"samples": {"mean": 10.0, "least": 10.0, "greatest": 10.0}, "energy_j": null, ...,
  //         "throttled_ranks": [5]}: each figure over the ranks that know it, null if none does;
  // "joules_per_token", by the name of `units`, "tokens" or "images": what `all_ranks` spent over
  // the units, both since the last line that has it; null until the energy of each rank is known,
  // and then once more, because the first energy is of a part of the time before it.
  // `ranks` are all, or those of one of several islands, which then stand for all.
  std::vector<Metric> add(const GpuUses& ranks, size_t all_ranks, double units,
                          const std::string& name_of_units);
  // What the libraries or the GPUs do not have: "energy_j (rank 3), xids (rank 0)", each figure
  // once, with the first rank that has samples without it. Empty if there is nothing new.
  std::string new_gaps(const GpuUses& ranks);

 private:
  double joules_per_unit(const GpuUses& ranks, double units);

  std::vector<std::optional<double>> spent_{};  // J, by rank, since they were last divided
  double units_ = 0;                            // likewise
  bool has_begun_ = false;                      // the energy of each rank was known
  std::set<GpuFigure> named_{};
};

}  // namespace tandem
