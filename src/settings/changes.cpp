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

// Calls visit(before, after) for each setting whose value differs.
template <class F>
void for_each_change(const Config& then, const Config& now, F visit) {
  const std::vector<Assignment> before = all_of(then), after = all_of(now);
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].value != after[i].value) {
      visit(before[i], after[i]);
    }
  }
}

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

std::string changed_settings(const Config& then, const Config& now) {
  std::string changes;
  // Ignored settings are compared by their defaults: older runs may hold other values, from before
  // these were errors, and can still be resumed.
  for_each_change(without_ignored_settings(then), without_ignored_settings(now),
                  [&](const Assignment& before, const Assignment& after) {
                    if (is_fixed(before.key)) {
                      changes +=
                          str("\n  was ", before.key, " = ", before.value, ", now ", after.value);
                    }
                  });
  return changes;
}

std::vector<std::string> all_changes(const Config& then, const Config& now) {
  std::vector<std::string> changes;
  for_each_change(then, now, [&](const Assignment& before, const Assignment& after) {
    changes.push_back(str(before.key, " ", shown(before.value), " -> ", shown(after.value)));
  });
  return changes;
}

}  // namespace tandem
