// Changes a configuration as a user does, by the text of a setting.
#pragma once

#include "src/settings/config.h"

namespace tandem {

// Throws Error(kConfig) for what a user would be told.
inline void set(Config& config, const std::string& key, const std::string& value) {
  Options options("");
  config.bind(options);
  fail_if_any(options.apply({{key, value, "test"}}));
}

}  // namespace tandem
