// The subcommands of `tandem`. Each takes the words after its name and returns the process exit
// code.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "src/core/error.h"

namespace tandem {

using Words = std::vector<std::string>;

ExitCode train_command(const Words& words, World& world);
ExitCode eval_command(const Words& words, World& world);
ExitCode export_command(const Words& words, World& world);
ExitCode generate_command(const Words& words, World& world);
ExitCode serve_command(const Words& words, World& world);
ExitCode prepare_command(const Words& words, World& world);
ExitCode inspect_command(const Words& words, World& world);
ExitCode compare_command(const Words& words, World& world);
ExitCode bench_command(const Words& words, World& world);
ExitCode estimate_command(const Words& words, World& world);

}  // namespace tandem
