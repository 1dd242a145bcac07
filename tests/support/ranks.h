// The collectives and the control messages of a group of ranks, for tests that need both; and a
// group of 1 rank.
#pragma once

#include "comm/transport/local_control.h"
#include "comm/transport/self_collectives.h"
#include "src/device/ranks/collectives.h"
#include "src/device/ranks/control.h"

namespace tandem::testing {

struct Ranks {
  Control& control;
  Collectives& collectives;
  int rank() const { return collectives.rank(); }
  int size() const { return collectives.size(); }
};

struct OneRank {
  LocalControl control{};
  SelfCollectives collectives{};
  operator Ranks() { return {control, collectives}; }
};

}  // namespace tandem::testing
