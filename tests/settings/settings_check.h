// What tests of settings do alike.
#pragma once

#include <string>
#include <vector>

#include "src/settings/config.h"

namespace tandem {

inline bool contains(const std::vector<std::string>& problems, const std::string& text) {
  for (const std::string& problem : problems) {
    if (problem.find(text) != std::string::npos) {
      return true;
    }
  }
  return false;
}

inline std::vector<std::string> apply(Config& config, const std::vector<Assignment>& assignments) {
  Options options("usage");
  config.bind(options);
  return options.apply(assignments);
}

inline Config valid() {
  Config config;
  config.data.path = "data.h5";
  return config;
}

}  // namespace tandem
