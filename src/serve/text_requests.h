// Requests for texts: those of SageMaker's clients, and of OpenAI's.
#pragma once

#include <map>

#include "src/data/tokenizer.h"
#include "src/serve/api.h"
#include "src/serve/text_answer.h"
#include "src/serve/text_service.h"

namespace tandem {

// What requests are checked against.
struct ServedModel {
  std::string name;                // as requests may say it
  std::string form;                // the chat template of its conversations; "plain": it has none
  int64_t context = 0;             // positions of a window
  std::vector<int32_t> ends{};     // tokens that end a text
  Tokenizer* tokenizer = nullptr;  // nobody else uses it
};

// POST /invocations, as Hugging Face's text-generation-inference takes and answers it,
// /v1/completions and /v1/chat/completions. Parameters that are not known, and values that are out
// of range, are 400 with their name.
std::map<std::string, Api::Post> text_posts(const ServedModel& model, TextService& service);

// The texts that a request asks for, with their answer.
struct AskedTexts {
  std::vector<TextRequest> requests{};
  std::unique_ptr<AnswerForm> form{};
  std::vector<WrittenText> texts{};
  bool streams = false;
};

// HttpError for a body that is no such request.
AskedTexts completion_request(const std::string& body, const ServedModel& model);
AskedTexts chat_request(const std::string& body, const ServedModel& model);
AskedTexts invocation_request(const std::string& body, const ServedModel& model);

// The tokens of a prompt. HttpError 400 where it is no text of the tokenizer's.
std::vector<int32_t> tokens_of(const std::string& form, const std::string& prompt,
                               const ServedModel& model);
// How many tokens may be written after a prompt: `wanted`, which must fit the window, or `usual`
// if it is negative. HttpError 400.
int64_t tokens_after(int64_t prompt, int64_t wanted, int64_t usual, const ServedModel& model);
// `given`, or a new one if it is negative.
int64_t seed_of(int64_t given);

}  // namespace tandem
