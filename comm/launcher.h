// What the environment says about how this process was started.
#pragma once

#include <string>

namespace tandem {

class World;

// True when mpirun, mpiexec or srun started this process. Slurm also says so inside a batch script
// without srun; that costs such a process a needless MPI start-up and nothing else.
bool started_by_launcher();

// Processes that the launcher started together, 1 when it does not say.
int launched_processes();

std::string host_name();

// Collective. With TANDEM_WAIT_RANK=N in the environment of rank 0, rank N says where it is and
// waits here for a debugger, or SIGCONT. Collectives of such a job never time out. An AgreedError
// (kConfig) when N is no rank.
void hold_for_debugger(World& world);

}  // namespace tandem
