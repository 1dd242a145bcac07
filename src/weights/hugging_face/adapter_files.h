// Adapters in the files of peft, Hugging Face's library for them: adapter_config.json and
// adapter_model.safetensors.
#pragma once

#include <string>
#include <vector>

#include "layers/models/transformer_config.h"
#include "src/settings/model_kind.h"

namespace tandem {

// The layers of a block that peft's target_modules would mean: "all" (peft: all-linear), or names
// of modules separated by commas, of which the last parts are enough: "q_proj,mlp.c_proj". Returns
// our names, in forward order. Error kConfig, with the names that there are, for another name.
std::vector<std::string> adapter_targets(const std::string& targets, const TransformerConfig& sizes,
                                         const ForeignNames& names);

// peft's names of these layers in any block: "attn.q" -> "self_attn.q_proj".
std::vector<std::string> modules_of(const std::vector<std::string>& layers,
                                    const ForeignNames& names);
// peft's name of a tensor of ours, which belongs to adapters.
std::string adapter_name(const std::string& ours, const ForeignNames& names);

}  // namespace tandem
