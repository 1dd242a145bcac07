// The measured choices of a run (src/machine/choices.h), which its folder keeps.
#pragma once

#include <functional>

#include "src/machine/choices.h"
#include "src/settings/config.h"
#include "src/weights/run_directory.h"

namespace tandem {

// Collective. A run keeps what it has chosen before, whatever run.choices says now. What is open
// besides is measured; `check_fit` is called before. AgreedErrors: those of choose(), and kConfig
// for run.choices on a CPU.
Chosen choose_for_run(const Config& config, const RunDirectory& directory, Machine& machine,
                      const OpenChoices& open, const std::function<void()>& check_fit);

}  // namespace tandem
