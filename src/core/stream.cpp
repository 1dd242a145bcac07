#include "src/core/stream.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "src/core/error.h"

namespace tandem {

struct Event::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;

  void finish(std::exception_ptr first_error) {
    {
      std::lock_guard lock(mutex);
      done = true;
      error = std::move(first_error);
    }
    changed.notify_all();
  }
};

bool Event::reached() const {
  if (!state_) {
    return true;
  }
  std::lock_guard lock(state_->mutex);
  return state_->done;
}

void Event::synchronize() const {
  if (!state_) {
    return;
  }
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done; });
  if (state_->error) {
    std::rethrow_exception(state_->error);
  }
}

struct Stream::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void(std::exception_ptr&)>> work;
  bool closed = false;
  std::exception_ptr error;  // first exception; only the thread touches it
  std::thread thread{[this] { run(); }};

  void run() {
    for (;;) {
      std::function<void(std::exception_ptr&)> next;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return closed || !work.empty(); });
        if (work.empty()) {
          return;
        }
        next = std::move(work.front());
        work.pop_front();
      }
      next(error);
    }
  }

  void push(std::function<void(std::exception_ptr&)> item) {
    {
      std::lock_guard lock(mutex);
      work.push_back(std::move(item));
    }
    changed.notify_one();
  }

  ~Queue() {
    {
      std::lock_guard lock(mutex);
      closed = true;
    }
    changed.notify_one();
    thread.join();
  }
};

Stream::Stream(Device device, std::unique_ptr<Queue> queue)
    : device_(device), queue_(std::move(queue)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream::~Stream() = default;

Stream Stream::compute(Device device) {
  require(device == Device::kCpu, "Stream: this build has no such device");
  return Stream(device, nullptr);
}

Stream Stream::background(Device device) {
  require(device == Device::kCpu, "Stream: this build has no such device");
  return Stream(device, std::make_unique<Queue>());
}

void Stream::submit(std::function<void()> work) {
  if (!queue_) {
    work();
    return;
  }
  queue_->push([work = std::move(work)](std::exception_ptr& error) {
    if (error) {
      return;
    }
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
  });
}

Event Stream::record() {
  if (!queue_) {
    return Event();
  }
  auto state = std::make_shared<Event::State>();
  queue_->push([state](std::exception_ptr& error) { state->finish(error); });
  return Event(state);
}

void Stream::wait(const Event& event) {
  submit([event] { event.synchronize(); });
}

void Stream::synchronize() { record().synchronize(); }

}  // namespace tandem
