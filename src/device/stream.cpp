#include "src/device/stream.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "src/device/cuda.h"
#include "src/device/dispatch.h"

namespace tandem {

// A point in the work of a background thread, in a CUDA stream, or in the time of a dry stream.
class Event::State {
 public:
  State() = default;
  explicit State(double time_s) : time_s_(time_s), done_(true) {}
  explicit State(cuda::EventHandle event) : gpu_(std::move(event)) {}
  CUevent_st* gpu() const { return gpu_.get(); }
  const std::optional<double>& time_s() const { return time_s_; }  // of a dry stream

  bool reached() {
    if constexpr (kHasCuda) {
      if (gpu_) {
        return cuda::reached(gpu());
      }
    }
    std::lock_guard lock(mutex_);
    return done_;
  }

  void synchronize() {
    if constexpr (kHasCuda) {
      if (gpu_) {
        return cuda::synchronize(gpu());
      }
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

  void finish(std::exception_ptr first_error) {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
      error_ = std::move(first_error);
    }
    changed_.notify_all();
  }

 private:
  cuda::EventHandle gpu_;
  std::optional<double> time_s_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

bool Event::reached() const { return !state_ || state_->reached(); }

void Event::synchronize() const {
  if (state_) {
    state_->synchronize();
  }
}

double Event::seconds_since(const Event& earlier) const {
  if constexpr (kHasCuda) {
    if (state_ && state_->gpu() && earlier.state_ && earlier.state_->gpu()) {
      return cuda::seconds_between(earlier.state_->gpu(), state_->gpu());
    }
  }
  if (state_ && state_->time_s() && earlier.state_ && earlier.state_->time_s()) {
    return *state_->time_s() - *earlier.state_->time_s();
  }
  fail(ExitCode::kInternal, "Event::seconds_since: these are no points of CUDA or dry streams");
}

class Stream::Queue {
 public:
  virtual ~Queue() = default;
  virtual void submit(std::function<void()> work) = 0;
  virtual std::shared_ptr<Event::State> record(bool timed) = 0;  // null: already reached
  virtual void wait(const Event& event) = 0;
  virtual CUstream_st* handle() const {
    fail(ExitCode::kInternal, "Stream::handle: this stream is the CPU's");
  }
};

// Work runs at once, on the calling thread.
class Stream::Inline final : public Queue {
 public:
  void submit(std::function<void()> work) override { work(); }
  std::shared_ptr<Event::State> record(bool) override { return nullptr; }
  void wait(const Event& event) override { event.synchronize(); }
};

// One thread, first in, first out.
class Stream::Background final : public Queue {
 public:
  ~Background() override {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void submit(std::function<void()> work) override {
    push([work = std::move(work)](std::exception_ptr& error) {
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

  std::shared_ptr<Event::State> record(bool) override {
    auto state = std::make_shared<Event::State>();
    push([state](std::exception_ptr& error) { state->finish(error); });
    return state;
  }

  void wait(const Event& event) override {
    submit([event] { event.synchronize(); });
  }

 private:
  using Work = std::function<void(std::exception_ptr&)>;

  void run() {
    for (;;) {
      Work next;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closed_ || !work_.empty(); });
        if (work_.empty()) {
          return;
        }
        next = std::move(work_.front());
        work_.pop_front();
      }
      next(error_);
    }
  }

  void push(Work item) {
    {
      std::lock_guard lock(mutex_);
      work_.push_back(std::move(item));
    }
    changed_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  bool closed_ = false;
  std::exception_ptr error_;  // the first exception; only thread_ touches it
  std::thread thread_{[this] { run(); }};
};

// A CUDA stream. Only builds with CUDA make it.
class Stream::OnGpu final : public Queue {
 public:
  explicit OnGpu(bool high_priority) : handle_(cuda::make_stream(high_priority)) {}
  void submit(std::function<void()>) override {
    fail(ExitCode::kInternal, "Stream::submit: a CUDA stream runs kernels, not host functions");
  }
  std::shared_ptr<Event::State> record(bool timed) override {
    return std::make_shared<Event::State>(cuda::record(handle(), timed));
  }
  void wait(const Event& event) override {
    if (event.state_ && event.state_->gpu()) {
      return cuda::wait(handle(), event.state_->gpu());
    }
    event.synchronize();
  }
  CUstream_st* handle() const override { return handle_.get(); }

 private:
  cuda::StreamHandle handle_;
};

// Runs nothing; only its clock advances.
class Stream::Dry final : public Queue {
 public:
  explicit Dry(const Speed& speed) : clock(speed) {}

  void submit(std::function<void()>) override {}  // the work does not run
  std::shared_ptr<Event::State> record(bool) override {
    return std::make_shared<Event::State>(clock.now_s);
  }
  void wait(const Event& event) override {
    const double until = event.state_ ? event.state_->time_s().value_or(0) : 0;
    clock.waited_s += std::max(until - clock.now_s, 0.0);
    clock.now_s = std::max(clock.now_s, until);
  }

  DryClock clock;
};

Stream::Stream(Device device, std::unique_ptr<Queue> queue)
    : device_(device), queue_(std::move(queue)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream::~Stream() = default;

Stream Stream::compute(Device device) {
  return device == Device::kCuda ? on_gpu(false) : Stream(device, std::make_unique<Inline>());
}

Stream Stream::background(Device device) {
  return device == Device::kCuda ? on_gpu(true) : Stream(device, std::make_unique<Background>());
}

Stream Stream::on_gpu(bool high_priority) {
  if constexpr (kHasCuda) {
    return Stream(Device::kCuda, std::make_unique<OnGpu>(high_priority));
  }
  fail(ExitCode::kInternal, "Stream: this build has no CUDA");
}

Stream Stream::dry(Device device, const Speed& speed) {
  auto queue = std::make_unique<Dry>(speed);
  DryClock* clock = &queue->clock;
  Stream stream(device, std::move(queue));
  stream.meter_ = stream.clock_ = clock;
  return stream;
}

Stream Stream::beside(const Stream& compute) {
  return compute.is_dry() ? dry(compute.device(), compute.clock().speed())
                          : background(compute.device());
}

Stream Stream::copying(const Stream& compute) {
  if (!compute.is_dry()) {
    return background(compute.device());
  }
  Speed speed = compute.clock().speed();
  speed.bytes_per_s = 2 * speed.host_bytes_per_s;
  return dry(compute.device(), speed);
}

DryClock& Stream::clock() const {
  require(is_dry(), "Stream::clock: this stream is not dry");
  return *clock_;
}

CUstream_st* Stream::handle() const { return queue_->handle(); }

bool Stream::is_captured() const {
  if constexpr (kHasCuda) {
    return device_ == Device::kCuda && !is_dry() && cuda::is_capturing(handle());
  }
  return false;
}

void Stream::submit(std::function<void()> work) { queue_->submit(std::move(work)); }

Event Stream::record() { return Event(queue_->record(false)); }

Event Stream::record_time() { return Event(queue_->record(true)); }

void Stream::wait(const Event& event) { queue_->wait(event); }

void Stream::synchronize() {
  const Event now = record();
  wait_ ? wait_(now) : now.synchronize();
}

}  // namespace tandem
