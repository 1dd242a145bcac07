#include "src/settings/changes.h"

namespace tandem {

namespace {

// With another value of one of these, a checkpoint would not fit, or a step number would stand for
// other samples. No weight depends on model.dropout.
bool is_fixed(const std::string& key) {
  return (key.starts_with("model.") && key != "model.dropout") || key == "data.path" ||
         key == "run.seed" || key == "train.global_batch" || key == "optim.kind";
}

std::vector<Assignment> all_of(const Config& config) {
  return parse_ini(config.ini_text(), "settings");
}

std::string shown(const std::string& value) { return value.empty() ? "\"\"" : value; }

}  // namespace

std::vector<std::string> fixed_keys() {
  std::vector<std::string> keys;
  for (const Assignment& setting : all_of({})) {
    if (is_fixed(setting.key)) {
      keys.push_back(setting.key);
    }
  }
  return keys;
}

std::vector<std::string> fixed_settings(const Config& config) {
  std::vector<std::string> lines;
  // Ignored settings are compared by their defaults: older runs may hold other values, from before
  // these were errors, and can still be resumed.
  for (const Assignment& setting : all_of(without_ignored_settings(config))) {
    if (is_fixed(setting.key)) {
      lines.push_back(setting.key + " = " + setting.value);
    }
  }
  return lines;
}

std::string changed_settings(const Config& then, const Config& now) {
  const std::vector<std::string> before = fixed_settings(then), after = fixed_settings(now);
  std::string changes;
  for (size_t i = 0; i < before.size() && i < after.size(); ++i) {
    if (before[i] != after[i]) {
      changes += str("\n  was ", before[i], ", now ", after[i].substr(after[i].find("= ") + 2));
    }
  }
  return changes;
}

std::vector<std::string> all_changes(const Config& then, const Config& now) {
  const std::vector<Assignment> before = all_of(then), after = all_of(now);
  std::vector<std::string> changes;
  for (size_t i = 0; i < before.size() && i < after.size(); ++i) {
    if (before[i].value != after[i].value) {
      changes.push_back(
          str(before[i].key, " ", shown(before[i].value), " -> ", shown(after[i].value)));
    }
  }
  return changes;
}

}  // namespace tandem
