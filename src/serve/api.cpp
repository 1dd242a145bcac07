#include "src/serve/api.h"

#include <random>

#include "src/core/error.h"
#include "src/inference/prompt.h"
#include "src/serve/json_fields.h"

namespace tandem {

namespace {

constexpr std::chrono::seconds kLongestStep{10};

const char* type_of(int status) {
  return status == 429   ? "rate_limit_error"
         : status >= 500 ? "server_error"
                         : "invalid_request_error";
}

// curl says that what it sends with -d is a form.
bool is_json(const std::string& content_type) {
  return content_type.empty() || content_type.starts_with("application/json") ||
         content_type == "application/x-www-form-urlencoded";
}

}  // namespace

std::string Api::error(int status, const std::string& why) {
  return dumped(
      {{"error",
        {{"message", why}, {"type", type_of(status)}, {"param", nullptr}, {"code", nullptr}}}});
}

bool Api::is_well() const {
  return service_.state() == TextService::State::kReady && service_.stalled() < kLongestStep;
}

void Api::handle(const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
  using Read = AskedTexts (*)(const std::string&, const ServedModel&);
  static const std::map<std::string, Read> kTexts = {{"/invocations", invocation_request},
                                                     {"/v1/completions", completion_request},
                                                     {"/v1/chat/completions", chat_request}};
  try {
    const auto texts = kTexts.find(request.path);
    const bool is_read =
        request.path == "/ping" || request.path == "/metrics" || request.path == "/v1/models";
    if (!is_read && texts == kTexts.end()) {
      throw RequestError(404, "there is nothing at this path");
    }
    if (is_read ? request.method != "GET" : request.method != "POST") {
      throw RequestError(405, is_read ? "this path takes GET" : "this path takes POST");
    }
    if (request.path == "/ping") {
      return answer->send(is_well() ? 200 : 503, "text/plain", "");
    }
    if (request.path == "/metrics") {
      return answer->send(200, "text/plain; version=0.0.4", metrics_.text());
    }
    if (request.path == "/v1/models") {
      const nlohmann::ordered_json model = {
          {"id", model_.name}, {"object", "model"}, {"created", 0}, {"owned_by", "tandem"}};
      return answer->send(200, "application/json",
                          dumped({{"object", "list"}, {"data", nlohmann::json::array({model})}}));
    }
    if (!is_json(request.content_type)) {
      throw RequestError(415, "this path takes application/json");
    }
    AskedTexts asked = texts->second(request.body, model_);
    service_.submit(std::make_shared<TextAnswer>(answer, std::move(asked.form),
                                                 std::move(asked.texts), asked.streams),
                    std::move(asked.requests));
  } catch (const RequestError& refused) {
    answer->send(refused.status, "application/json", error(refused.status, refused.what()));
  }
}

std::vector<int32_t> tokens_of(const std::string& form, const std::string& prompt,
                               const ServedModel& model) {
  try {
    return prompt_tokens(form, prompt, *model.tokenizer);
  } catch (const Error& error) {
    throw RequestError(400, error.what());
  }
}

int64_t tokens_after(int64_t prompt, int64_t wanted, int64_t usual, const ServedModel& model) {
  const int64_t room = model.context - prompt;
  if (room < std::max<int64_t>(wanted, 1)) {
    throw RequestError(400,
                       str("a prompt of ", prompt, " tokens and ", std::max<int64_t>(wanted, 1),
                           " more do not fit the window of ", model.context));
  }
  return wanted > 0 ? wanted : std::min(usual, room);
}

int64_t seed_of(int64_t given) {
  static std::mt19937_64 seeds{std::random_device{}()};
  return given >= 0 ? given : static_cast<int64_t>(seeds() >> 1);
}

}  // namespace tandem
