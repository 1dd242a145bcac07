#include "src/weights/hugging_face/adapter_files.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "src/core/visible_text.h"
#include "src/weights/hugging_face/names.h"

namespace tandem {

namespace {

// "attn.q" -> "self_attn.q_proj"
std::string module_of(const std::string& layer, const ForeignNames& names) {
  const std::string block = foreign_name("blocks.0.", names);
  const std::string module = foreign_name("blocks.0." + layer + ".", names);
  return module.substr(block.size(), module.size() - block.size() - 1);
}

}  // namespace

std::vector<std::string> adapter_targets(const std::string& targets, const TransformerConfig& sizes,
                                         const ForeignNames& names) {
  const std::vector<std::string> layers = sizes.adaptable();
  if (targets == "all") {
    return layers;
  }
  std::set<std::string> chosen;
  std::istringstream list(targets);
  for (std::string target; std::getline(list, target, ',');) {
    std::set<std::string> meant, there_are;
    for (const std::string& layer : layers) {
      const std::string module = module_of(layer, names);
      there_are.insert(module.substr(module.rfind('.') + 1));
      if (("." + module).ends_with("." + target)) {
        meant.insert(layer);
      }
    }
    if (meant.empty()) {
      const std::vector<std::string> known(there_are.begin(), there_are.end());
      fail(ExitCode::kConfig, str("lora.targets: ", visible(target), " is no layer of the model; ",
                                  "there are ", joined(known), ", and all of them: all"));
    }
    chosen.merge(meant);
  }
  std::vector<std::string> in_order;
  std::ranges::copy_if(layers, std::back_inserter(in_order),
                       [&](const std::string& layer) { return chosen.contains(layer); });
  return in_order;
}

std::vector<std::string> modules_of(const std::vector<std::string>& layers,
                                    const ForeignNames& names) {
  std::vector<std::string> modules;
  std::ranges::transform(layers, std::back_inserter(modules),
                         [&](const std::string& layer) { return module_of(layer, names); });
  return modules;
}

std::string adapter_name(const std::string& ours, const ForeignNames& names) {
  return "base_model.model." + foreign_name(ours, names);
}

}  // namespace tandem
