#include "src/commands/settings.h"

#include <algorithm>
#include <filesystem>

#include "src/core/error.h"
#include "src/io/file.h"
#include "src/train/hugging_face/settings.h"

namespace tandem {

namespace {

// Applies the settings of a Hugging Face model's config.json. `given` are those of the user, which
// `options` holds already; only model.context may differ, and be shorter.
std::vector<std::string> apply_imported(Options& options, const std::string& folder,
                                        const std::vector<Assignment>& given) try {
  Options theirs("");
  Config config = hugging_face_config(folder);
  config.bind(theirs);
  std::vector<std::string> problems;
  std::vector<Assignment> imported;
  for (const Assignment& setting : hugging_face_settings(folder)) {
    const std::string& key = setting.key;
    const std::string ours = options.text(key), value = theirs.text(key);
    if (std::ranges::find(given, key, &Assignment::key) == given.end()) {
      imported.push_back(setting);
    } else if (key == "model.context" ? std::stoll(ours) > std::stoll(value) : ours != value) {
      problems.push_back(str(key, " = ", ours, ", but ", setting.origin, " has ", value,
                             "; leave the setting out"));
    }
  }
  const auto wrong = options.apply(imported);
  problems.insert(problems.end(), wrong.begin(), wrong.end());
  return problems;
} catch (const Error& error) {
  return {error.what()};
}

}  // namespace

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
  std::string from;
  for (const Assignment& setting : settings) {
    from = setting.key == "checkpoint.init_from" ? setting.value : from;
  }
  if (!from.empty() && is_hugging_face(from)) {
    const auto disagree = apply_imported(options, from, settings);
    problems.insert(problems.end(), disagree.begin(), disagree.end());
  }
  return problems;
}

}  // namespace tandem
