// How a conversation becomes one text: with the marks that models of a family are trained with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class Tokenizer;

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

// The parts of a conversation up to where the assistant speaks next, and the special token that
// ends what it says.
std::vector<ChatPart> chat_prompt(std::string_view name, const std::vector<ChatMessage>& messages);
std::string_view chat_end(std::string_view name);

// The same template in the language of Hugging Face's chat_template.jinja, with `generation` around
// what is learned.
std::string chat_jinja(std::string_view name);

// The tokens of a text, and for each whether it is learned: 1 or 0.
struct ChatTokens {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> loss;

  void add(std::span<const int32_t> more, bool is_learned);
};

// Appends the tokens of the parts. Text between special tokens is encoded as one; what is learned
// in it comes last, and begins with the first token that the text before it alone would not give.
// Throws kConfig when the tokenizer lacks a special token.
void append_parts(std::span<const ChatPart> parts, Tokenizer& tokenizer, ChatTokens* out);

// The text without Unicode's white space around it, as Python's str.strip() gives it. Valid UTF-8.
std::string_view stripped(std::string_view text);

}  // namespace tandem
