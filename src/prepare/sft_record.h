// Records of instruction data.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/chat_template.h"

namespace tandem {

// Whether a member of this name can change what a record says.
bool is_sft_field(std::string_view name);

// The parts of the text of a record, which has
//   prompt, completion
//   instruction, output, and perhaps input (Taori et al. 2023)
//   messages: a list of {role, content}, the system's first if it speaks, then the user's and the
//   assistant's in turn. Tools, and an answer of another weight than 1, cannot be read.
// but only one of these.
// `form`: a chat template, or "plain", which takes prompt and completion as they are, instructions
// in Alpaca's words, and no messages. Otherwise the first two kinds are a message and its answer.
// If the record cannot be read, returns no parts, and the problem.
std::vector<ChatPart> sft_parts(const nlohmann::json& record, std::string_view form,
                                std::string* problem);

// A conversation: a list of {role, content} in this order. Throws BadRecord.
std::vector<ChatMessage> chat_messages(const nlohmann::json& list);

}  // namespace tandem
