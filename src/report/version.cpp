#include "src/report/version.h"

#include "src/core/error.h"

namespace tandem {

std::string version() { return TANDEM_VERSION; }

std::string version_text() {
  const std::string commit = TANDEM_COMMIT;  // 12 digits; empty without a repository
  return str("tandem ", version(), " (", commit.empty() ? "no git commit" : "commit " + commit,
             ")\ncompiler  " TANDEM_COMPILER "\nGPU       " TANDEM_GPU "\nMPI       " TANDEM_MPI
             "\nHDF5      " TANDEM_HDF5 "\n");
}

}  // namespace tandem
