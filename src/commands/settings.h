// Reads the settings of a run from configuration files and the command line.
#pragma once

#include <string>
#include <vector>

#include "src/options/options.h"

namespace tandem {

// Applies the files that --config or words without a key name, in order, then the command line,
// which wins. If checkpoint.init_from is a Hugging Face model, then also the settings model.* of
// its config.json. Returns a line for each file that cannot be read, for each wrong setting, and
// for each given one that disagrees with config.json.
std::vector<std::string> apply_settings(Options& options, const std::vector<std::string>& words);

}  // namespace tandem
