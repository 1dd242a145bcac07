// The world of a test program that runs under mpirun, or alone as one rank
// (tests/support/mpi_main.cpp).
#pragma once

#include "comm/world.h"
#include "tests/support/ranks.h"

namespace tandem::testing {

World& test_world();
inline Ranks test_ranks() { return {test_world().control(), test_world().collectives()}; }

}  // namespace tandem::testing
