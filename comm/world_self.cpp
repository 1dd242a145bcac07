// A world of one rank, for builds without MPI.
#include <cstdlib>
#include <iostream>

#include "comm/transport/launcher.h"
#include "comm/transport/local_control.h"
#include "comm/transport/self_collectives.h"
#include "comm/world.h"
#include "src/trace/flight_log.h"

namespace tandem {

World::World()
    : host_(host_name()),
      control_(std::make_unique<LocalControl>()),
      collectives_(std::make_unique<SelfCollectives>()) {
  if (launched_processes() > 1) {
    fail(ExitCode::kConfig, "started as ", launched_processes(),
         " processes, but this build has no MPI: start one process, or install an MPI library "
         "(Debian: libopenmpi-dev) and build again");
  }
}

void World::finish(ExitCode code) { flight_log().close(code); }

void World::abort(ExitCode code) {
  std::cout.flush();
  flight_log().close(code);
  std::_Exit(static_cast<int>(code));
}

}  // namespace tandem
