#include "src/inference/prompt.h"

#include "src/data/chat_template.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/run_directory.h"

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
  } else if (tokens.empty()) {
    tokens =
        tokenizer.end_of_text() ? std::vector{*tokenizer.end_of_text()} : tokenizer.encode("\n");
  }
  return tokens;
}

std::vector<int32_t> end_tokens(const std::string& form, const std::string& checkpoint,
                                const Tokenizer& tokenizer) {
  std::vector<int32_t> ends;
  if (is_hugging_face(checkpoint)) {
    ends = hugging_face_end_tokens(checkpoint);
  } else if (tokenizer.end_of_text()) {
    ends = {*tokenizer.end_of_text()};
  }
  if (form != "plain") {
    ends.push_back(tokenizer.special_token(chat_end(form)).value());
  }
  return ends;
}

}  // namespace tandem
