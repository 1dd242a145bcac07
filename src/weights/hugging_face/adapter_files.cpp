#include "src/weights/hugging_face/adapter_files.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>

#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/weights/hugging_face/json_keys.h"
#include "src/weights/hugging_face/names.h"

namespace tandem {

namespace {

// "attn.q" -> "model.layers.0.self_attn.q_proj"
std::string module_in(int64_t block, const std::string& layer, const ForeignNames& names) {
  const std::string module = foreign_name(str("blocks.", block, ".", layer, "."), names);
  return module.substr(0, module.size() - 1);
}

// "attn.q" -> "self_attn.q_proj"
std::string module_of(const std::string& layer, const ForeignNames& names) {
  return module_in(0, layer, names).substr(foreign_name("blocks.0.", names).size());
}

std::string weights_in(const std::string& folder) {
  const std::string path = folder + "/adapter_model.safetensors";
  std::error_code ignored;  // opening the path tells more
  if (std::filesystem::is_directory(path, ignored)) {
    fail_data(path, ": is a folder; peft keeps adapters in one file of this name");
  }
  return path;
}

// Refuses what peft can do and adapters here cannot, and keys that this program does not know.
void require_plain(const JsonKeys& keys) {
  // These change no result of trained adapters. Settings of initializations (eva_config) count only
  // with init_lora_weights, whose values beside these change the weights of the base.
  static const std::set<std::string> harmless = {"auto_mapping",      "base_model_name_or_path",
                                                 "corda_config",      "eva_config",
                                                 "fan_in_fan_out",    "inference_mode",
                                                 "loftq_config",      "lora_alpha",
                                                 "lora_dropout",      "lora_ga_config",
                                                 "megatron_core",     "peft_version",
                                                 "qalora_group_size", "r",
                                                 "revision",          "target_modules",
                                                 "task_type"};
  static const std::map<std::string, std::set<Json>> known{
      {"peft_type", {"LORA"}},
      {"bias", {"none"}},
      {"init_lora_weights", {true, "gaussian", "eva", "orthogonal", "mica"}}};
  if (!keys.find("peft_type")) {
    fail_data(keys.path(), R"(: has no peft_type; for LoRA adapters add "peft_type": "LORA")");
  }
  for (const auto& [key, value] : keys.json().items()) {
    const auto values = known.find(key);
    const bool is_known = values != known.end() && values->second.contains(value);
    const bool is_off = value.empty() || value == Json(false);
    if (!is_known && !is_off && !harmless.contains(key)) {
      fail_data(keys.path(), ": ", visible(key).substr(0, 100), " = ", shown(value),
                " is not in this program and may change results; merge these adapters in peft "
                "(merge_and_unload), or remove the key if it changes nothing");
    }
  }
}

// The modules that are named in full or by their last parts.
std::set<std::string> target_modules(const JsonKeys& keys) {
  const Json* names = keys.find("target_modules");
  const auto is_text = [](const Json& name) { return name.is_string(); };
  if (!names || !names->is_array() || !std::ranges::all_of(*names, is_text)) {
    fail_data(keys.path(), ": target_modules = ", names ? shown(*names) : "null",
              R"( is no list of modules; write one, such as ["q_proj", "v_proj"])");
  }
  return {names->begin(), names->end()};
}

bool is_named(std::string_view module, const std::set<std::string>& names) {
  for (size_t dot = 0; dot != std::string_view::npos; module.remove_prefix(dot + 1)) {
    if (names.contains(std::string(module))) {
      return true;
    }
    dot = module.find('.');
  }
  return false;
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
      fail(ExitCode::kConfig, "lora.targets: ", visible(target), " is no layer of the model; ",
           "there are ", joined(known), ", and all of them: all");
    }
    chosen.merge(meant);
  }
  if (chosen.empty()) {
    fail(ExitCode::kConfig, "lora.targets is empty; name layers, or all of them: all");
  }
  std::vector<std::string> in_order;
  std::ranges::copy_if(layers, std::back_inserter(in_order),
                       [&](const std::string& layer) { return chosen.contains(layer); });
  return in_order;
}

std::vector<std::string> modules_of(const std::vector<std::string>& layers,
                                    const ForeignNames& names) {
  return mapped(layers, [&](const std::string& layer) { return module_of(layer, names); });
}

std::string adapter_name(const std::string& ours, const ForeignNames& names) {
  return "base_model.model." + foreign_name(ours, names);
}

bool is_adapter_folder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path + "/adapter_config.json", ignored);
}

LoraConfig adapter_settings(const std::string& folder, const ModelKind& kind) {
  const JsonKeys keys = JsonKeys::of(folder + "/adapter_config.json");
  require_plain(keys);
  const std::optional<TransformerConfig> sizes = kind.transformer();
  if (!sizes || !kind.foreign_names()) {
    fail_data(folder, ": adapters are for a gpt or llama");
  }
  const Json *rank = keys.find("r"), *alpha = keys.find("lora_alpha");
  if (!rank || !rank->is_number_unsigned() || *rank < 1 || *rank > LoraConfig::kLargestRank) {
    fail_data(keys.path(), ": r = ", rank ? shown(*rank) : "null", " is no rank of 1 to ",
              LoraConfig::kLargestRank);
  }
  if (!alpha || !alpha->is_number() || *alpha < 0 || *alpha > LoraConfig::kLargestAlpha) {
    fail_data(keys.path(), ": lora_alpha = ", alpha ? shown(*alpha) : "null",
              " is no number of 0 to ", LoraConfig::kLargestAlpha);
  }
  LoraConfig settings{rank->get<int64_t>(), alpha->get<double>(), ""};
  const std::set<std::string> targets = target_modules(keys);
  const SafetensorsReader file(weights_in(folder));
  const ForeignNames& names = *kind.foreign_names();
  for (const std::string& layer : sizes->adaptable()) {
    const bool is_there = file.find(adapter_name(str("blocks.0.", layer, kLoraA), names));
    if (is_there) {
      settings.targets += (settings.targets.empty() ? "" : ",") + module_of(layer, names);
    }
    for (int64_t block = 0; is_there && block < sizes->layers; ++block) {
      const std::string module = module_in(block, layer, names);
      if (!is_named(module, targets)) {
        fail_data(keys.path(), ": target_modules = ", shown(*keys.find("target_modules")),
                  " leaves out ", module, ", which has adapters in ", file.path(),
                  "; add it to the list");
      }
    }
  }
  if (settings.targets.empty()) {
    fail_data(file.path(), ": has no adapters for the first block of this model");
  }
  return settings;
}

AdapterReader::AdapterReader(std::unique_ptr<TensorSource> base, const std::string& folder,
                             Model& model, const ForeignNames& names)
    : base_(std::move(base)), file_(weights_in(folder)) {
  std::set<std::string> used;
  for (const Parameter* parameter : parameters_of(model)) {
    for (const Piece& piece : pieces_of(*parameter)) {
      if (!is_adapter(piece.name)) {
        continue;
      }
      const Entry entry{adapter_name(piece.name, names), piece.slice.whole()};
      const SafetensorsEntry* there = file_.find(entry.theirs);
      if (!there || !std::ranges::equal(there->shape, entry.shape.sizes())) {
        fail_data(file_.path(), ": has no ", entry.theirs, " ", entry.shape,
                  "; it is for another model, or not for each of its blocks");
      }
      used.insert(entry.theirs);
      entries_["param/" + piece.name] = entry;
    }
  }
  for (const SafetensorsEntry& entry : file_.tensors()) {
    if (!used.contains(entry.name)) {
      fail_data(file_.path(), ": tensor ", visible(entry.name),
                " belongs to no adapter of this model");
    }
  }
}

void AdapterReader::require_tensor(const std::string& name, const Shape& shape) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return base_->require_tensor(name, shape);
  }
  if (found->second.shape != shape) {
    fail_data(file_.path(), ": ", found->second.theirs, " is ", found->second.shape, ", not ",
              shape);
  }
}

void AdapterReader::read(const Slab& slab) const {
  const auto found = entries_.find(slab.name);
  if (found == entries_.end()) {
    return base_->read(slab);
  }
  require(slab.slice == Slice(slab.slice.whole()), "ranks cut no adapters");
  const std::span<float> values = slab.data.as<float>();
  file_.read(found->second.theirs, slab.offset, values);
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
    fail_data(file_.path(), ": ", found->second.theirs,
              " has a number that is not finite; use adapters of an earlier checkpoint");
  }
}

std::string AdapterReader::home_of(const std::string& name) const {
  return entries_.contains(name) ? file_.path() : base_->home_of(name);
}

}  // namespace tandem
