#include "src/serve/text_service.h"

#include <algorithm>

#include "src/core/error.h"

namespace tandem {

void TextService::submit(std::shared_ptr<TextClient> client, std::vector<TextRequest> texts) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) {
    return client->fail(503, "the server takes no requests now");
  }
  if (std::ssize(queue_) >= limit_) {
    return client->fail(429, "too many requests wait; try again later");
  }
  queue_.push_back({std::move(client), std::move(texts)});
  came_.notify_one();
}

std::chrono::steady_clock::duration TextService::stalled() const {
  const int64_t began = step_began_;
  return began == 0 ? Clock::duration::zero()
                    : Clock::now().time_since_epoch() - Clock::duration(began);
}

void TextService::run(TextBatch& batch, const Tokenizer& tokenizer,
                      const std::function<bool()>& stops, std::chrono::milliseconds grace) {
  Clock::time_point end = Clock::time_point::max();
  try {
    while (Clock::now() < end) {
      if (state_ == State::kReady && stops()) {
        state_ = State::kDraining;
        end = Clock::now() + grace;
      }
      drop_gone(batch);
      take(batch, tokenizer);
      if (batch.is_empty()) {
        if (state_ == State::kDraining) {
          break;
        }
        std::unique_lock lock(mutex_);
        constexpr std::chrono::milliseconds kLook{50};  // then a signal is noticed
        came_.wait_for(lock, kLook, [&] { return !queue_.empty(); });
        continue;
      }
      step_began_ = Clock::now().time_since_epoch().count();
      batch.step();
      step_began_ = 0;
      deliver();
    }
  } catch (const std::exception& error) {
    state_ = State::kFailed;
    fail_all(500, "the model failed");
    fail(ExitCode::kInternal, str("a step of the model failed: ", error.what()));
  }
  fail_all(503, "the server ends");
}

// Begins as many texts as there are slots for. While draining none begin, and what waits fails.
void TextService::take(TextBatch& batch, const Tokenizer& tokenizer) {
  std::deque<Request> refused;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kDraining) {
      refused.swap(queue_);
    }
    while (batch.has_room() && !queue_.empty()) {
      Request& request = queue_.front();
      const size_t index = request.begun++;
      running_.push_back({request.client, index,
                          std::make_unique<TextWriter>(std::move(request.texts[index]), tokenizer),
                          request.came});
      batch.add(*running_.back().writer);
      if (request.begun == request.texts.size()) {
        queue_.pop_front();
      }
    }
    metrics_.set_load(std::ssize(queue_), batch.texts());
  }
  for (const Request& request : refused) {
    request.client->fail(503, "the server ends");
  }
}

void TextService::deliver() {
  for (Running& each : running_) {
    if (each.writer->tokens() == each.seen) {
      continue;  // its prompt is being read
    }
    const Clock::time_point now = Clock::now();
    metrics_.count_token(std::chrono::duration<double>(now - each.last).count(), each.seen == 0);
    each.last = now;
    each.seen = each.writer->tokens();
    each.client->on_token(each.index, *each.writer);
  }
  std::erase_if(running_, [](const Running& each) { return each.writer->has_ended(); });
}

void TextService::drop_gone(TextBatch& batch) {
  std::erase_if(running_, [&](const Running& each) {
    const bool is_gone = each.client->is_gone();
    if (is_gone) {
      batch.remove(*each.writer);
    }
    return is_gone;
  });
  const std::lock_guard lock(mutex_);
  std::erase_if(queue_, [](const Request& request) { return request.client->is_gone(); });
}

void TextService::fail_all(int status, const std::string& why) {
  std::deque<Request> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(queue_);
  }
  for (const Running& each : running_) {
    each.client->fail(status, why);
  }
  for (const Request& request : waiting) {
    request.client->fail(status, why);
  }
  running_.clear();
}

}  // namespace tandem
