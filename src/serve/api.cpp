#include "src/serve/api.h"

#include <map>
#include <random>
#include <set>

#include "src/core/error.h"
#include "src/inference/prompt.h"
#include "src/serve/json_fields.h"

namespace tandem {

namespace {

using Read = AskedTexts (*)(const std::string&, const ServedModel&);
const std::map<std::string, Read> kTexts = {{"/invocations", invocation_request},
                                            {"/v1/completions", completion_request},
                                            {"/v1/chat/completions", chat_request}};
const std::set<std::string> kReads = {"/ping", "/metrics", "/v1/models"};

void refuse(HttpAnswer& answer, const HttpError& why) {
  answer.send(why.status, "application/json", error_json(why.status, why.what()));
}

// curl says that what it sends with -d is a form.
bool is_json(const std::string& content_type) {
  return content_type.empty() || content_type.starts_with("application/json") ||
         content_type == "application/x-www-form-urlencoded";
}

}  // namespace

bool Api::is_well() const {
  return service_.state() == TextService::State::kReady && service_.stalled() < model_.longest_step;
}

Api::Api(ServedModel model, TextService& service, ServeMetrics& metrics)
    : model_(std::move(model)),
      service_(service),
      metrics_(metrics),
      reader_([this](const std::stop_token& stop) { read_posts(stop); }) {}

void Api::handle(HttpRequest request, const std::shared_ptr<HttpAnswer>& answer) {
  const bool is_post = kTexts.contains(request.path);
  if (!is_post && !kReads.contains(request.path)) {
    return refuse(*answer, {404, "there is nothing at this path"});
  }
  if (request.method != (is_post ? "POST" : "GET")) {
    return refuse(*answer, {405, is_post ? "this path takes POST" : "this path takes GET"});
  }
  if (!is_post) {
    return get(request.path, *answer);
  }
  const std::lock_guard lock(mutex_);
  posts_.push_back({std::move(request), answer});
  came_.notify_one();
}

void Api::get(const std::string& path, HttpAnswer& answer) const {
  if (path == "/ping") {
    return answer.send(is_well() ? 200 : 503, "text/plain", "");
  }
  if (path == "/metrics") {
    return answer.send(200, "text/plain; version=0.0.4", metrics_.text());
  }
  const nlohmann::ordered_json model = {
      {"id", model_.name}, {"object", "model"}, {"created", 0}, {"owned_by", "tandem"}};
  answer.send(200, "application/json",
              dumped({{"object", "list"}, {"data", nlohmann::json::array({model})}}));
}

void Api::read_posts(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (came_.wait(lock, stop, [&] { return !posts_.empty(); })) {
    const Post next = std::move(posts_.front());
    posts_.pop_front();
    lock.unlock();
    if (!next.answer->is_gone()) {
      post(next);
    }
    lock.lock();
  }
}

void Api::post(const Post& post) {
  try {
    if (!is_json(post.request.content_type)) {
      throw HttpError(415, "this path takes application/json");
    }
    AskedTexts asked = kTexts.at(post.request.path)(post.request.body, model_);
    service_.submit(std::make_shared<TextAnswer>(post.answer, std::move(asked.form),
                                                 std::move(asked.texts), asked.streams),
                    std::move(asked.requests));
  } catch (const HttpError& refused) {
    refuse(*post.answer, refused);
  } catch (const std::exception& failed) {
    refuse(*post.answer, {500, failed.what()});
  }
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
  if (room < std::max<int64_t>(wanted, 1)) {
    throw HttpError(400, str("a prompt of ", prompt, " tokens and ", std::max<int64_t>(wanted, 1),
                             " more do not fit the window of ", model.context));
  }
  return wanted > 0 ? wanted : std::min(usual, room);
}

int64_t seed_of(int64_t given) {
  static std::mt19937_64 seeds{std::random_device{}()};
  return given >= 0 ? given : static_cast<int64_t>(seeds() >> 1);
}

}  // namespace tandem
