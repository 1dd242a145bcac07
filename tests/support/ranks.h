// The two ways in which a group of ranks talks, for tests that need both; and one rank alone.
#pragma once

#include "comm/collectives.h"
#include "comm/control.h"
#include "comm/transport/local_control.h"
#include "comm/transport/self_collectives.h"

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
