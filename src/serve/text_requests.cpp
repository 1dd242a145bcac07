#include "src/serve/text_requests.h"

#include <random>

#include "src/inference/prompt.h"

namespace tandem {

namespace {

// curl says that what it sends with -d is a form.
bool is_json(const std::string& content_type) {
  return content_type.empty() || content_type == "application/json" ||
         content_type == "application/x-www-form-urlencoded";
}

}  // namespace

std::map<std::string, Api::Post> text_posts(const ServedModel& model, TextService& service) {
  const auto post = [&](AskedTexts read(const std::string&, const ServedModel&)) {
    return [model, read, &service](const HttpRequest& request,
                                   const std::shared_ptr<HttpAnswer>& answer) {
      if (!is_json(request.content_type)) {
        throw HttpError(415, "this path takes application/json");
      }
      AskedTexts asked = read(request.body, model);
      service.submit(std::make_shared<TextAnswer>(answer, std::move(asked.form),
                                                  std::move(asked.texts), asked.streams),
                     std::move(asked.requests));
    };
  };
  return {{"/invocations", post(invocation_request)},
          {"/v1/completions", post(completion_request)},
          {"/v1/chat/completions", post(chat_request)}};
}

std::vector<int32_t> tokens_of(const std::string& form, const std::string& prompt,
                               const ServedModel& model) {
  try {
    return prompt_tokens(form, prompt, *model.tokenizer);
  } catch (const Error& error) {
    throw HttpError(400, error.what());
  }
}

int64_t tokens_after(int64_t prompt, int64_t wanted, int64_t usual, const ServedModel& model) {
  const int64_t room = model.context - prompt;
  const int64_t least = wanted < 0 ? 1 : wanted;
  if (room < least) {
    throw HttpError(400, "a prompt of ", prompt, " tokens and ", least,
                    " more do not fit the window of ", model.context);
  }
  return wanted < 0 ? std::min(usual, room) : wanted;
}

int64_t seed_of(int64_t given) {
  static std::mt19937_64 seeds{std::random_device{}()};
  return given >= 0 ? given : static_cast<int64_t>(seeds() >> 1);
}

}  // namespace tandem
