#include "src/inference/prompt.h"

#include <filesystem>

#include "src/core/error.h"
#include "src/data/chat_template.h"
#include "src/io/file.h"
#include "src/weights/hugging_face/settings.h"

namespace tandem {

std::vector<int32_t> prompt_tokens(const std::string& form, const std::string& prompt,
                                   Tokenizer& tokenizer) {
  if (form != "plain") {
    ChatTokens chat;
    append_parts(chat_prompt(form, {{"user", prompt}}), tokenizer, &chat);
    return chat.tokens;
  }
  std::vector<int32_t> tokens(tokenizer.before_text().begin(), tokenizer.before_text().end());
  if (!prompt.empty()) {
    tokenizer.append_tokens(prompt, &tokens);
  } else if (tokens.empty() && tokenizer.end_of_text()) {
    tokens = {*tokenizer.end_of_text()};
  } else if (tokens.empty()) {
    try {
      tokens = tokenizer.encode("\n");
    } catch (const Error&) {  // it was trained on a text of one line
      tokens = {0};
    }
  }
  if (tokens.empty()) {
    fail_data("the tokenizer makes no token of this prompt");
  }
  return tokens;
}

std::vector<int32_t> end_tokens(const std::string& form, const std::string& checkpoint,
                                const Tokenizer& tokenizer) {
  std::vector<int32_t> ends;
  if (is_hugging_face(checkpoint)) {
    ends = hugging_face_tokens(checkpoint, "eos_token_id");
  } else if (tokenizer.end_of_text()) {
    ends = {*tokenizer.end_of_text()};
  }
  if (form != "plain") {
    const std::optional<int32_t> end = tokenizer.special_token(chat_end(form));
    if (!end) {
      fail(ExitCode::kConfig, str("the tokenizer has no special token ", chat_end(form), ", which ",
                                  "ends an answer in the template ", form));
    }
    ends.push_back(*end);
  }
  return ends;
}

std::string chat_template_of(const std::string& checkpoint) {
  const std::string file = checkpoint + "/chat_template.jinja";
  if (std::filesystem::exists(file)) {
    const std::string text = read_file(file);
    for (const char* name : {"chatml", "llama3"}) {
      if (text == chat_jinja(name)) {
        return name;
      }
    }
  }
  return "plain";
}

}  // namespace tandem
