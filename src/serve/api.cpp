#include "src/serve/api.h"

#include <set>

#include "src/serve/json_answer.h"

namespace tandem {

namespace {

const std::set<std::string> kReads = {"/ping", "/metrics", "/v1/models"};

}  // namespace

Api::Api(Options options, const ModelState& model, const ServeMetrics& metrics)
    : options_(std::move(options)),
      model_(model),
      metrics_(metrics),
      reader_([this](const std::stop_token& stop) { read_posts(stop); }) {}

bool Api::is_well() const {
  return model_.state() == ModelState::State::kReady && model_.stalled() < options_.longest_step;
}

void Api::handle(HttpRequest request, const std::shared_ptr<HttpAnswer>& answer) {
  const bool is_post = options_.posts.contains(request.path);
  if (!is_post && !kReads.contains(request.path)) {
    return send_error(*answer, 404, "there is nothing at this path");
  }
  if (request.method != (is_post ? "POST" : "GET")) {
    const std::string method = is_post ? "POST" : "GET";
    return answer->send(405, "application/json", error_json(405, "this path takes " + method),
                        {{"Allow", method}});
  }
  if (!is_post) {
    return get(request.path, *answer);
  }
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(posted_, [](const Posted& posted) { return posted.answer->is_gone(); });
    if (std::ssize(posted_) < options_.queue) {
      posted_.push_back({std::move(request), answer});
      came_.notify_one();
      return;
    }
  }
  send_error(*answer, 429, "too many requests wait; try again later");
}

void Api::get(const std::string& path, HttpAnswer& answer) const {
  if (path == "/ping") {
    return answer.send(is_well() ? 200 : 503, "text/plain", "");
  }
  if (path == "/metrics") {
    return answer.send(200, "text/plain; version=0.0.4", metrics_.text());
  }
  const nlohmann::ordered_json model = {
      {"id", options_.name}, {"object", "model"}, {"created", 0}, {"owned_by", "tandem"}};
  answer.send(200, "application/json",
              dumped({{"object", "list"}, {"data", nlohmann::json::array({model})}}));
}

void Api::read_posts(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (came_.wait(lock, stop, [&] { return !posted_.empty(); })) {
    const Posted next = std::move(posted_.front());
    posted_.pop_front();
    lock.unlock();
    if (!next.answer->is_gone()) {
      post(next);
    }
    lock.lock();
  }
}

void Api::post(const Posted& posted) const {
  try {
    options_.posts.at(posted.request.path)(posted.request, posted.answer);
  } catch (const HttpError& refused) {
    send_error(*posted.answer, refused.status, refused.what());
  } catch (const std::exception& failed) {
    send_error(*posted.answer, 500, failed.what());
  }
}

}  // namespace tandem
