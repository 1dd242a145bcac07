// What the environment says about how this process was started.
#pragma once

#include <string>

namespace tandem {

// True when mpirun, mpiexec or srun started this process. It is also true inside a Slurm batch
// script without srun; such a process then starts MPI needlessly, which does no harm.
bool started_by_launcher();

// The number of processes that the launcher started together; 1 if it does not say.
int launched_processes();

std::string host_name();

}  // namespace tandem
