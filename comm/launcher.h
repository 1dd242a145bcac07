// What the environment says about how this process was started.
#pragma once

#include <string>

namespace tandem {

// True when mpirun, mpiexec or srun started this process. Slurm also says so inside a batch script
// without srun; that costs such a process a needless MPI start-up and nothing else.
bool started_by_launcher();

// Processes that the launcher started together, 1 when it does not say.
int launched_processes();

std::string host_name();

}  // namespace tandem
