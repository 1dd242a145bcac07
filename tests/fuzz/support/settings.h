// What must hold for settings that were accepted.
#pragma once

#include "src/settings/config.h"
#include "tests/fuzz/support/fuzz.h"

namespace tandem::fuzz {

inline void check_settings(const Config& config) {
  const std::string text = config.ini_text();
  Config again;
  check(accepts(ExitCode::kConfig, [&] { again = config_from_text(text, "config.cfg"); }),
        "settings are read from what was written");
  check(again.ini_text() == text, "written settings read back as they were");
  again.training_step(Device::kCuda, 2);
}

}  // namespace tandem::fuzz
