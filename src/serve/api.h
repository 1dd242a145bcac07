// What `tandem serve` answers: SageMaker's contract, and OpenAI's completions.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "src/data/tokenizer.h"
#include "src/serve/http/http_server.h"
#include "src/serve/text_answer.h"
#include "src/serve/text_service.h"

namespace tandem {

// What requests are checked against.
struct ServedModel {
  std::string name;                // in /v1/models
  std::string form;                // the chat template of its conversations; "plain": it has none
  int64_t context = 0;             // positions of a window
  std::vector<int32_t> ends{};     // tokens that end a text
  Tokenizer* tokenizer = nullptr;  // nobody else uses it
  std::chrono::milliseconds longest_step{10000};  // of the model; then /ping says 503
};

//   GET  /ping                 200 while texts can be asked for, 503 otherwise
//   POST /invocations          as Hugging Face's text-generation-inference takes and answers it
//   POST /v1/completions, /v1/chat/completions
//   GET  /v1/models, /metrics
// Parameters that are not known, and values that are out of range, are 400 with their name.
class Api {
 public:
  Api(ServedModel model, TextService& service, ServeMetrics& metrics);

  // Does not block: a long prompt becomes tokens on a thread of its own.
  void handle(HttpRequest request, const std::shared_ptr<HttpAnswer>& answer);

 private:
  struct Post {
    HttpRequest request;
    std::shared_ptr<HttpAnswer> answer;
  };
  bool is_well() const;
  void get(const std::string& path, HttpAnswer& answer) const;
  void post(const Post& post);
  void read_posts(const std::stop_token& stop);

  ServedModel model_;
  TextService& service_;
  ServeMetrics& metrics_;
  std::mutex mutex_;
  std::condition_variable_any came_;
  std::deque<Post> posts_;  // guarded by mutex_
  std::jthread reader_;
};

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

// The tokens of a prompt, and room for at least one more in the window. HttpError 400.
std::vector<int32_t> tokens_of(const std::string& form, const std::string& prompt,
                               const ServedModel& model);
// How many tokens may be written after a prompt: `wanted`, which must fit the window, or `usual`
// if it is 0.
int64_t tokens_after(int64_t prompt, int64_t wanted, int64_t usual, const ServedModel& model);
// `given`, or a new one if it is negative.
int64_t seed_of(int64_t given);

}  // namespace tandem
