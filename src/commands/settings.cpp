#include "src/commands/settings.h"

#include <algorithm>
#include <filesystem>

#include "src/commands/request.h"
#include "src/core/error.h"
#include "src/io/file.h"
#include "src/options/hints.h"
#include "src/weights/hugging_face/settings.h"

namespace tandem {

namespace {

// Applies the settings of a Hugging Face model's config.json. `given` are those of the user, which
// `options` holds already; only model.context may differ, and be shorter.
std::vector<std::string> apply_imported(Options& options, const std::string& folder,
                                        const std::vector<Assignment>& given) {
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
      add_problem(problems, key, " = ", ours, ", but ", setting.origin, " has ", value,
                  key == "model.context" ? "; write at most that" : "; leave the setting out");
    }
  }
  append(problems, options.apply(imported));
  return problems;
}

// What may have been meant by a configuration file that is not there.
std::string hint_for(const std::string& path) {
  if (path.find('=') != std::string::npos) {
    return "; settings are --section.key value: write --" + path;
  }
  std::vector<std::string> there;  // without .cfg
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(parent_of(path), none)) {
    if (entry.path().extension() == ".cfg") {
      there.push_back(entry.path().stem());
    }
  }
  const std::filesystem::path meant = path;
  const std::string guess = nearest_name(meant.stem(), there);
  return guess.empty() ? "; settings are --section.key value"
                       : str("; did you mean ", (meant.parent_path() / guess).string(), ".cfg?");
}

}  // namespace

std::vector<std::string> apply_settings(Options& options, const std::vector<std::string>& words) {
  const CommandLine line = options.parse(words, "config");
  std::vector<std::string> problems;
  std::vector<Assignment> settings;
  for (const Assignment& assignment : line.assignments) {
    if (assignment.key == "config" && !assignment.bare) {
      if (!std::filesystem::exists(assignment.value)) {
        fail(ExitCode::kConfig, "no configuration file ", assignment.value,
             hint_for(assignment.value));
      }
      try {
        append(settings, parse_ini(read_file(assignment.value), assignment.value));
        for (const Assignment& setting : settings) {
          if (setting.key == "config") {
            fail(ExitCode::kConfig, setting.origin, ": config = ", setting.value,
                 ": a file names no other; write --config on the command line");
          }
        }
      } catch (const Error& error) {
        problems.push_back(error.what());
      }
    }
  }
  append(settings, line.assignments);
  append(problems, options.apply(settings));
  // A model that was moved is where checkpoint.base says.
  for (const std::string key : {"checkpoint.init_from", "checkpoint.base"}) {
    const std::string folder = options.text(key);
    if (!folder.empty() && is_hugging_face(folder)) {
      append(problems, apply_imported(options, folder, settings));
      break;
    }
  }
  return problems;
}

}  // namespace tandem
