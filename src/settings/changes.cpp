#include "src/settings/changes.h"

#include <filesystem>
#include <map>

namespace tandem {

namespace {

// With another value of one of these, a checkpoint would not fit, or a step number would stand for
// other samples. No weight depends on model.dropout.
bool is_fixed(const std::string& key) {
  return (key.starts_with("model.") && key != "model.dropout") || key.starts_with("lora.") ||
         key == "run.seed" || key == "data.path" || key == "data.windows" ||
         key == "train.global_batch" || key == "optim.kind";
}

// SGD keeps a momentum for each weight, but none where optim.momentum is 0.
bool changes_state(const Config& now, const Assignment& before, const Assignment& after) {
  return before.key == "optim.momentum" && now.optim.kind.name() == "sgd" &&
         (before.value == "0") != (after.value == "0");
}

std::vector<Assignment> all_of(const Config& config) {
  return parse_ini(config.ini_text(), "settings");
}

std::string shown(const std::string& value) { return value.empty() ? "\"\"" : value; }

// The sizes that follow from others or from the dataset where their setting is 0, by setting; empty
// for other models, and if sizes do not fit together.
std::map<std::string, int64_t> derived_sizes(const Config& config, int64_t vocab) {
  std::optional<TransformerConfig> sizes = config.model->transformer();
  if (!sizes || vocab == 0 || !sizes->problems().empty()) {
    return {};
  }
  sizes->vocab = sizes->vocab > 0 ? sizes->vocab : vocab;
  const TransformerConfig all = resolved(*sizes);
  return {{"model.vocab", all.vocab},
          {"model.ffn_width", all.ffn_width},
          {"model.positions", all.positions},
          {"model.kv_heads", all.kv_heads},
          {"model.head_width", all.head_width}};
}

// Calls visit(before, after) for each setting that both read and that means something else.
template <class F>
void for_each_change(const Config& then, const Config& now, int64_t vocab, F visit) {
  const std::vector<Assignment> after = all_of(now);
  const auto old_sizes = derived_sizes(then, vocab), sizes = derived_sizes(now, vocab);
  const auto is_derived_alike = [&](const std::string& key) {
    return old_sizes.contains(key) && sizes.contains(key) && old_sizes.at(key) == sizes.at(key);
  };
  for (const Assignment& before : all_of(then)) {
    const auto same = std::ranges::find(after, before.key, &Assignment::key);
    if (same != after.end() && same->value != before.value && !is_derived_alike(before.key)) {
      visit(before, *same);
    }
  }
}

}  // namespace

std::vector<std::string> fixed_keys() {
  Config config;
  Options options("");
  config.bind(options);
  std::vector<std::string> keys = options.keys();
  std::erase_if(keys, [](const std::string& key) { return !is_fixed(key); });
  return keys;
}

std::string changed_settings(const Config& then, const Config& now, int64_t vocab,
                             const std::vector<std::string>& except) {
  std::string changes;
  for_each_change(then, now, vocab, [&](const Assignment& before, const Assignment& after) {
    if ((is_fixed(before.key) || changes_state(now, before, after)) &&
        std::ranges::count(except, before.key) == 0) {
      changes += str("\n  was ", before.key, " = ", before.value, ", now ", after.value);
    }
  });
  const std::string& source = now.checkpoint.init_from;
  if (!changes.empty() && !source.empty() && !std::filesystem::exists(source)) {
    changes += str("\n  nothing is at checkpoint.init_from = ", source,
                   ", which may have said them; if it was moved, checkpoint.base says where to");
  }
  return changes;
}

std::vector<std::string> all_changes(const Config& then, const Config& now, int64_t vocab) {
  std::vector<std::string> changes;
  for_each_change(then, now, vocab, [&](const Assignment& before, const Assignment& after) {
    changes.push_back(str(before.key, " ", shown(before.value), " -> ", shown(after.value)));
  });
  return changes;
}

}  // namespace tandem
