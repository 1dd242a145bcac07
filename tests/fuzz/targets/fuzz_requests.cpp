// The bodies of requests for texts: src/serve/json_fields.cpp src/serve/completions.cpp
// src/serve/invocations.cpp src/serve/text_requests.cpp
#include <string>

#include "src/serve/json_fields.h"
#include "src/serve/text_requests.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<Tokenizer> tokenizer = make_bytes_tokenizer();
  static const ServedModel model{
      .name = "model", .form = "plain", .context = 64, .tokenizer = tokenizer.get()};
  const std::string body = fuzz::text_of(data, size);
  for (const auto read : {completion_request, chat_request, invocation_request}) {
    try {
      const AskedTexts asked = read(body, model);
      fuzz::check(!asked.requests.empty() && asked.requests.size() == asked.texts.size(),
                  "each text has a request");
      for (const TextRequest& request : asked.requests) {
        const int64_t tokens = std::ssize(request.prompt) + request.tokens;
        fuzz::check(!request.prompt.empty() && request.tokens >= 0 && tokens <= model.context,
                    "a text fits the window");
      }
      asked.form->whole(asked.texts);
    } catch (const HttpError& refused) {
      fuzz::check(refused.status == 400 || refused.status == 404, "a bad request is 400 or 404");
      error_json(refused.status, refused.what());
    }
  }
  return 0;
}
