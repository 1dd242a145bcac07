// The settings of a run from where users write them.
#pragma once

#include <string>
#include <vector>

#include "src/settings/options.h"

namespace tandem {

// Applies the files that --config names, in order, then the command line, which wins. Returns a
// line for each word without a key, each file that cannot be read, and each wrong assignment.
std::vector<std::string> apply_settings(Options& options, const std::vector<std::string>& words);

}  // namespace tandem
