// How a conversation becomes one text: with the marks that models of a family are trained with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct ChatMessage {
  std::string role, content;  // role: system, user or assistant
};

// A part of the text of a record.
struct ChatPart {
  std::string text;
  bool is_token = false;    // the text is the name of a special token
  bool is_learned = false;  // the model is to write it
};

// Names of the templates: "chatml" (Qwen, SmolLM and many others) and "llama3" (Llama 3 and later,
// which strips white space around what is said).
bool is_chat_template(std::string_view name);

// The parts of a conversation. What the assistant says is learned, with the token that ends it.
std::vector<ChatPart> chat_parts(std::string_view name, const std::vector<ChatMessage>& messages);

// The same template in the language of Hugging Face's chat_template.jinja, with `generation` around
// what is learned.
std::string chat_jinja(std::string_view name);

// The text without Unicode's white space around it, as Python's str.strip() gives it. Valid UTF-8.
std::string_view stripped(std::string_view text);

}  // namespace tandem
