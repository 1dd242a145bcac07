// The paths of `tandem serve`, and who answers them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "src/serve/http/http_server.h"
#include "src/serve/metrics.h"
#include "src/serve/model_service.h"

namespace tandem {

// GET /ping: 200 while the model can be asked, 503 otherwise. GET /v1/models, /metrics.
// POST: what the model answers.
class Api {
 public:
  // Reads a request and hands it to the model. HttpError for what is no such request.
  using Post = std::function<void(const HttpRequest&, const std::shared_ptr<HttpAnswer>&)>;
  struct Options {
    std::string name;                               // in /v1/models
    std::map<std::string, Post> posts;              // by path; a thread of the API's own calls them
    std::chrono::milliseconds longest_step{10000};  // of the model; then /ping says 503
    int64_t queue = 64;  // posts that wait to be read; more are refused with 429
  };

  Api(Options options, const ModelState& model, const ServeMetrics& metrics);

  // Does not block.
  void handle(HttpRequest request, const std::shared_ptr<HttpAnswer>& answer);

 private:
  struct Posted {
    HttpRequest request;
    std::shared_ptr<HttpAnswer> answer;
  };
  bool is_well() const;
  void get(const std::string& path, HttpAnswer& answer) const;
  void post(const Posted& posted) const;
  void read_posts(const std::stop_token& stop);

  const Options options_;
  const ModelState& model_;
  const ServeMetrics& metrics_;
  std::mutex mutex_;
  std::condition_variable_any came_;
  std::deque<Posted> posted_;  // guarded by mutex_
  std::jthread reader_;
};

}  // namespace tandem
