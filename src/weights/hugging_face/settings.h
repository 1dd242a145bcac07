// What the JSON files of a Hugging Face model say: its settings as ours, and its end tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/settings/config.h"

namespace tandem {

// True for a folder with a config.json that is no checkpoint of ours.
bool is_hugging_face(const std::string& path);

// The settings model.* that the folder's config.json decides, for GPT2LMHeadModel,
// LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM, as transformers 4
// and 5 write them. Each has config.json as its origin. A key that config.json leaves out has the
// default of transformers.
//
// Error kData if the file cannot be read; and with key and value for what is wrong in any program,
// such as sizes that do not fit together, and for what our models lack: another architecture or
// activation, biases in a gated feed-forward network, layers of different kinds, quantised weights,
// other scalings of rotary frequencies.
std::vector<Assignment> hugging_face_settings(const std::string& folder);

// The default settings with those of hugging_face_settings(), and as train.precision the type of
// the weights (`dtype`, or `torch_dtype`). Errors as there.
Config hugging_face_config(const std::string& folder);

// What generation_config.json, or else config.json, has as `key`: eos_token_id or bos_token_id, the
// tokens that end or begin a text. Error kData if they cannot be read.
std::vector<int32_t> hugging_face_tokens(const std::string& folder, const std::string& key);

}  // namespace tandem
