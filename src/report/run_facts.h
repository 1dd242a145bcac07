// What the files of a run say about it, for tables of runs: read without a checkpoint's tensors,
// and from runs of other versions too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/options/options.h"
#include "src/weights/run_directory.h"

namespace tandem {

struct RunFacts {
  // Of a training or a validation loss; empty where there is none, or where it is not finite.
  struct Loss {
    int64_t step = 0;
    double value = 0;
  };

  std::string path{}, name{};          // "runs/book", "book"
  std::vector<Assignment> settings{};  // of config.cfg; empty without one
  int64_t step = 0, steps = 0;         // done, as far as was logged or saved; wanted
  bool is_running = false;             // a process of this host or file system holds its lock
  std::string last_end{};              // RunStart::state of the last start; empty: not known
  int64_t bytes = 0;                   // of all its files
  double age_s = 0;                    // since the last line of metrics.jsonl, or since its start
  std::vector<Loss> curve{};           // training losses in the order of steps
  std::optional<Loss> loss{}, val_loss{}, best_val_loss{};  // last, last and least
  // "tokens_per_s" or "images_per_s" of the last line; 0: not known.
  std::string rate_name{};
  double rate = 0, step_ms = 0;
  double usd = 0;                          // that it has cost; 0: not known
  int64_t peak_bytes = 0, wire_bytes = 0;  // of the last line: memory of the largest rank, and sent

  // "running", "finished", "died" (its last start never said how it ended), "stopped", or "new"
  // before the first step.
  std::string state() const;
  // The least validation loss, or, without validations, the least training loss.
  std::optional<Loss> best() const;
  // The value of a setting in config.cfg; empty where it is not there.
  std::string setting(const std::string& key) const;
  std::string json() const;  // one object on one line
};

// True when the folder holds a run: its config.cfg or its metrics.jsonl.
bool is_run(const std::string& folder);

// Error kData when a file cannot be read. Damaged lines of metrics.jsonl are passed over.
RunFacts read_run(const RunDirectory& directory);

}  // namespace tandem
