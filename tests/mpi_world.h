// The world of a test program that runs under mpirun, or alone as one rank (tests/mpi_main.cpp).
#pragma once

#include "comm/world.h"

namespace tandem::testing {

World& test_world();

}  // namespace tandem::testing
