// What a language model is asked to continue.
#pragma once

#include <string>
#include <vector>

#include "src/data/tokenizer.h"

namespace tandem {

// The tokens of a prompt. `form` is "plain" or a chat template (src/data/chat_template.h), for
// which the prompt is what the user says. A plain prompt follows the token that begins texts; one
// that is empty is that token, or the one that ends texts, or a line end. Error kData for a text
// that the tokenizer does not know.
std::vector<int32_t> prompt_tokens(const std::string& form, const std::string& prompt,
                                   Tokenizer& tokenizer);

// The tokens that end what the model of `checkpoint` writes. Error kConfig if the tokenizer lacks
// that of the template.
std::vector<int32_t> end_tokens(const std::string& form, const std::string& checkpoint,
                                const Tokenizer& tokenizer);

// The chat template that a model's chat_template.jinja is; "plain" if it has none of ours.
std::string chat_template_of(const std::string& checkpoint);

}  // namespace tandem
