// How a step's global batch is divided: each island has an equal part, and each of its ranks an
// equal share of that, which it processes one micro-batch after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "src/core/error.h"

namespace tandem {

struct BatchPlan {
  int64_t global_batch, given_micro_batch;  // samples; a micro-batch of 0 is a rank's whole share
  int ranks;                                // of an island, that take different samples
  int tensor = 1;                           // that take the same samples each
  int islands = 1;

  int64_t share() const { return global_batch / (ranks * islands); }
  int64_t micro_batch() const { return given_micro_batch > 0 ? given_micro_batch : share(); }
  int64_t accumulation() const { return share() / micro_batch(); }  // micro-batches of a rank
  int64_t micro_batches() const { return accumulation() * ranks; }  // of an island
  // Where the share of a rank begins in the global batch. `rank`: its number in the island.
  int64_t first_sample(int island, int rank) const { return (island * ranks + rank) * share(); }

  // A message if the settings do not divide evenly; empty if they do.
  std::vector<std::string> problems() const {
    const int takers = ranks * islands;
    const int64_t unit = std::max<int64_t>(given_micro_batch, 1) * takers,
                  units = global_batch / unit;
    const std::string all =
        tensor == 1 ? str(takers) : str("ranks / dist.tensor = ", takers * tensor, " / ", tensor);
    const std::string divisor = given_micro_batch > 0
                                    ? str("train.micro_batch x ", tensor == 1 ? "ranks = " : "",
                                          given_micro_batch, " x ", all, " = ", unit)
                                : tensor == 1 ? all + " ranks"
                                              : str(all, " = ", takers);
    if (global_batch % unit == 0) {
      return {};
    }
    return {str("train.global_batch = ", global_batch, " is not divisible by ", divisor,
                units > 0 ? str("; the nearest that are: ", units * unit, " and ")
                          : "; the least that is: ",
                (units + 1) * unit)};
  }
};

}  // namespace tandem
