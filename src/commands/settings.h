// The settings of a run from where users write them.
#pragma once

#include <string>
#include <vector>

#include "src/train/options.h"

namespace tandem {

// The assignments of the files that --config names, in order, then those of the command line, which
// win. Adds a line to `problems` for each word without a key and each file that cannot be read.
std::vector<Assignment> settings_of(const CommandLine& line, std::vector<std::string>& problems);

}  // namespace tandem
