// Which Tandem this is, and what it was built with.
#pragma once

#include <string>

namespace tandem {

// "0.1.0", the version of the CMake project.
std::string version();
// What `tandem --version` prints: a line each for version, compiler, GPU, MPI and HDF5, as they
// were when the program was built.
std::string version_text();

}  // namespace tandem
