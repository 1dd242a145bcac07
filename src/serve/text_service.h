// Texts that are asked for while others are written: a queue, and the loop that writes them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "src/inference/text_batch.h"
#include "src/serve/metrics.h"

namespace tandem {

// Who asked for texts. All functions are called by the thread of TextService::run(), except that
// the one which submits may see fail() before submit() returns.
class TextClient {
 public:
  virtual ~TextClient() = default;
  virtual bool is_gone() const = 0;
  // A token was chosen, of the text with this index. writer.take() is what may be shown of it.
  virtual void on_token(size_t index, TextWriter& writer) = 0;
  // There will be no more tokens. `status` is one of HTTP.
  virtual void fail(int status, const std::string& why) = 0;
};

class TextService {
 public:
  enum class State { kLoading, kReady, kDraining, kFailed };

  // At most `queue` requests wait.
  TextService(int64_t queue, ServeMetrics& metrics) : limit_(queue), metrics_(metrics) {}

  // Any thread. Asks for the texts of one client, which fails at once if the service is not ready
  // (503) or so many wait already (429).
  void submit(std::shared_ptr<TextClient> client, std::vector<TextRequest> texts);

  State state() const { return state_; }
  void open() { state_ = State::kReady; }  // run() follows at once
  // How long the loop has been in one step.
  std::chrono::steady_clock::duration stalled() const;

  // Writes texts until `stops` says true and all that had begun have ended, at most for `grace`
  // more; what waited then fails with 503. A request whose client is gone loses its slots before
  // the next step. Where a step throws, all requests fail with 500, and run() throws
  // Error(kInternal).
  void run(TextBatch& batch, const Tokenizer& tokenizer, const std::function<bool()>& stops,
           std::chrono::milliseconds grace);

 private:
  using Clock = std::chrono::steady_clock;
  struct Request {
    std::shared_ptr<TextClient> client;
    std::vector<TextRequest> texts;
    size_t begun = 0;
    Clock::time_point came = Clock::now();
  };
  struct Running {
    std::shared_ptr<TextClient> client;
    size_t index;
    std::unique_ptr<TextWriter> writer;
    Clock::time_point last;  // token, or when the request came
    int64_t seen = 0;        // tokens
  };
  void take(TextBatch& batch, const Tokenizer& tokenizer);
  void deliver();
  void drop_gone(TextBatch& batch);
  void fail_all(int status, const std::string& why);

  const int64_t limit_;
  ServeMetrics& metrics_;
  std::atomic<State> state_ = State::kLoading;
  std::atomic<int64_t> step_began_ = 0;  // ticks of Clock; 0: no step
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Request> queue_;     // guarded by mutex_
  std::vector<Running> running_;  // of the loop alone
};

}  // namespace tandem
