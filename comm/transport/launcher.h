// What the environment says about how this process was started.
#pragma once

#include <string>

namespace tandem {

class World;

// True when mpirun, mpiexec or srun started this process. It is also true inside a Slurm batch
// script without srun; such a process then starts MPI needlessly, which does no harm.
bool started_by_launcher();

// The number of processes that the launcher started together; 1 if it does not say.
int launched_processes();

std::string host_name();

// Collective. If TANDEM_WAIT_RANK=N is set for rank 0, rank N prints its host and process id and
// waits here for a debugger or SIGCONT. Collectives of such a job never time out. Throws
// AgreedError(kConfig) if N is not a rank.
void hold_for_debugger(World& world);

}  // namespace tandem
