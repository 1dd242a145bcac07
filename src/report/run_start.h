// The starts of a run: where each ran and how far it got. report.json has one entry for each.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

// The latest value of a loss and the least one; empty: none that was finite.
struct Losses {
  std::optional<double> last{}, best{};

  void add(double loss);
  bool operator==(const Losses&) const = default;
};

// What metrics.jsonl says of the steps that a run goes on from.
struct LoggedSoFar {
  double elapsed_s = 0;  // seconds of training, over all starts
  Losses training{}, validation{};
};

// Reads the log at `path`, which may be missing. Error kData if the file cannot be read.
LoggedSoFar read_logged(const std::string& path);

struct RunStart {
  std::string version{};             // of this program
  double time = 0;                   // when it began, in Unix seconds
  std::vector<std::string> hosts{};  // each once, in the order of ranks
  int64_t ranks = 0;
  std::string device{};             // of a rank: "2 threads", "cuda (NVIDIA H200), nccl"
  int64_t first_step = 0;           // updates that were done before
  int64_t step = 0;                 // updates done; if it died, as of its last checkpoint
  double duration_s = 0;            // of training, with validation and saves
  std::string unit{};               // of units_per_s: "tokens" or "images"
  double units_per_s = 0;           // mean over duration_s
  double usd = 0;                   // of the run, with all starts before (RunCost); 0: not known
  Losses training{}, validation{};  // of the whole run, nats per target
  std::string state = "running";    // or "finished", "stopped" (on request), "died"

  // {"version": "0.1.0", "time": 1790000000.5, "hosts": ["a"], "ranks": 2, "device": "1 thread",
  //  "first_step": 0, "step": 20, "duration_s": 1.5, "tokens_per_s": 900.0, "loss": 2.5,
  //  "best_loss": 2.4, "val_loss": 2.6, "best_val_loss": 2.6, "state": "finished"}. Losses that are
  // empty are left out, and a `usd` of 0.
  nlohmann::ordered_json json() const;
  // Throws std::exception when this is no such object.
  static RunStart from_json(const nlohmann::ordered_json& json);
  bool operator==(const RunStart&) const = default;
};

}  // namespace tandem
