#include "src/commands/settings.h"

#include <filesystem>

#include "src/core/error.h"
#include "src/io/file.h"

namespace tandem {

std::vector<std::string> apply_settings(Options& options, const std::vector<std::string>& words) {
  const CommandLine line = options.parse(words, "config");
  std::vector<std::string> problems;
  std::vector<Assignment> settings;
  for (const Assignment& assignment : line.assignments) {
    if (assignment.key == "config") {
      if (!std::filesystem::exists(assignment.value)) {
        problems.push_back(
            str("no configuration file ", assignment.value, "; settings are --section.key value"));
        continue;
      }
      try {
        const auto from_file = parse_ini(read_file(assignment.value), assignment.value);
        settings.insert(settings.end(), from_file.begin(), from_file.end());
      } catch (const Error& error) {
        problems.push_back(error.what());
      }
    }
  }
  settings.insert(settings.end(), line.assignments.begin(), line.assignments.end());
  const auto wrong = options.apply(settings);
  problems.insert(problems.end(), wrong.begin(), wrong.end());
  return problems;
}

}  // namespace tandem
