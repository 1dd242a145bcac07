// Requests that wait for a model, and the loop that runs it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>

#include "src/core/error.h"

namespace tandem {

// Who waits for a model.
class ModelClient {
 public:
  virtual ~ModelClient() = default;
  virtual bool is_gone() const = 0;
  // There will be no answer, or no more of one. `status` is one of HTTP.
  virtual void fail(int status, const std::string& why) = 0;
};

// How a model is. Any thread may ask.
class ModelState {
 public:
  using Clock = std::chrono::steady_clock;
  enum class State { kLoading, kReady, kDraining, kFailed };

  virtual ~ModelState() = default;
  State state() const { return state_; }
  void open() { state_ = State::kReady; }  // the loop follows at once
  // How long the loop has been in one step.
  Clock::duration stalled() const {
    const int64_t began = step_began_;
    return began == 0 ? Clock::duration::zero()
                      : Clock::now().time_since_epoch() - Clock::duration(began);
  }

 protected:
  std::atomic<State> state_ = State::kLoading;
  std::atomic<int64_t> step_began_ = 0;  // ticks of Clock; 0: no step
};

// A Request has a `client`, which points to a ModelClient.
template <class Request>
class ModelService : public ModelState {
 public:
  // At most so many requests wait.
  explicit ModelService(int64_t queue) : limit_(queue) {}

 protected:
  // Any thread. A client fails at once if the model is not ready (503) or so many wait already
  // (429).
  void enqueue(Request request) {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kReady) {
      return request.client->fail(503, "the server takes no requests now");
    }
    if (std::ssize(queue_) >= limit_) {
      return request.client->fail(429, "too many requests wait; try again later");
    }
    queue_.push_back(std::move(request));
    came_.notify_one();
  }

  // Runs until `stops` says true and all that had begun have ended, at most for `grace` more; what
  // waited then fails with 503. A request whose client is gone ends before the next step. Where a
  // step throws, all requests fail with 500, and this throws Error(kInternal).
  void run(const std::function<bool()>& stops, std::chrono::milliseconds grace) {
    Clock::time_point end = Clock::time_point::max();
    try {
      while (Clock::now() < end) {
        if (state_ == State::kReady && stops()) {
          state_ = State::kDraining;
          end = Clock::now() + grace;
        }
        take();
        if (!is_idle()) {
          step_began_ = Clock::now().time_since_epoch().count();
          step();
          step_began_ = 0;
        } else if (state_ == State::kDraining) {
          break;
        } else {
          std::unique_lock lock(mutex_);
          constexpr std::chrono::milliseconds kLook{50};  // then a signal is noticed
          came_.wait_for(lock, kLook, [&] { return !queue_.empty(); });
        }
      }
    } catch (const std::exception& error) {
      state_ = State::kFailed;
      fail_all(500, "the model failed");
      tandem::fail(ExitCode::kInternal, "a step of the model failed: ", error.what());
    }
    fail_all(503, "the server ends");
  }

 private:
  // The thread of run() calls these.
  virtual void drop_gone() = 0;  // of those that have begun
  // Begins as many of those that wait as there is room for. The queue is locked.
  virtual void begin(std::deque<Request>& queue) = 0;
  virtual bool is_idle() const = 0;  // none has begun
  virtual void step() = 0;
  virtual void fail_begun(int status, const std::string& why) = 0;

  // A request for several may have begun with the first of them.
  static bool has_begun(const Request& request) {
    if constexpr (requires { request.begun; }) {
      return request.begun > 0;
    } else {
      return false;
    }
  }

  // While draining none begin, and what waits fails.
  void take() {
    drop_gone();
    if (state_ == State::kDraining) {
      fail_waiting(503, "the server ends", has_begun);
    }
    const std::lock_guard lock(mutex_);
    std::erase_if(queue_, [](const Request& request) { return request.client->is_gone(); });
    begin(queue_);
  }

  void fail_waiting(int status, const std::string& why, bool stays(const Request&)) {
    std::deque<Request> failing;
    {
      const std::lock_guard lock(mutex_);
      const auto first = std::stable_partition(queue_.begin(), queue_.end(), stays);
      std::move(first, queue_.end(), std::back_inserter(failing));
      queue_.erase(first, queue_.end());
    }
    for (const Request& request : failing) {
      request.client->fail(status, why);
    }
  }

  void fail_all(int status, const std::string& why) {
    fail_begun(status, why);
    fail_waiting(status, why, [](const Request&) { return false; });
  }

  const int64_t limit_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Request> queue_;  // guarded by mutex_
};

}  // namespace tandem
