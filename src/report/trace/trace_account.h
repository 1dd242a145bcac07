// Where the time of traced steps went: the parts of each rank, for whom it waited, and how much of
// communication was hidden behind computing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/trace/trace.h"

namespace tandem {

struct TraceAccount {
  struct Rank {
    int rank = 0;
    PhaseSeconds parts{};             // those of the metrics
    std::map<int, double> waiting_s;  // seconds for each rank that came last to a collective
    double together_s = 0;            // a tensor collective is under way
    double hidden_s = 0;              // and the compute stream computes meanwhile

    double waiting() const;
    // The rest of what is exposed of communication: the bytes, after all ranks had come.
    double transfer() const;
    int waits_most_for() const;  // a rank; -1: for none
  };
  struct Step {
    int64_t number = 0;
    std::vector<Rank> ranks{};
  };
  std::vector<Step> steps;
  double clocks_agree_s = 0;  // within this

  // All steps: sums of each rank.
  std::vector<Rank> total() const;
};

// `traces`: those of all ranks of a job. A rank that waits, waits for the oldest collective that it
// has begun: until the last rank begins it for that rank, afterwards for the transfer. Error(kData)
// if the ranks have different steps.
TraceAccount account_of(const std::vector<Trace>& traces);

// Tables in milliseconds.
std::string text_of(const TraceAccount& account);
std::string json_of(const TraceAccount& account);

}  // namespace tandem
