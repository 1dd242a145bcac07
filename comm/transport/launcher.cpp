#include "comm/transport/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace tandem {

bool started_by_launcher() {
  // Open MPI; MPICH, Intel MPI and MVAPICH (PMI); any launcher with PMIx; Slurm.
  constexpr std::array kNames = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK",    "PMI_FD", "PMIX_RANK",
                                 "MPI_LOCALNRANKS",      "SLURM_PROCID"};
  return std::ranges::any_of(kNames, [](const char* name) { return std::getenv(name) != nullptr; });
}

int launched_processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    if (const char* text = std::getenv(name)) {
      return std::atoi(text);
    }
  }
  return 1;
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace tandem
