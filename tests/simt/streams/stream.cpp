#include "tests/simt/streams/stream.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

#include "tests/simt/memory.h"
#include "tests/simt/settings.h"
#include "tests/simt/simt.h"
#include "tests/simt/streams/graph.h"

namespace simt {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kIdle = std::chrono::milliseconds(5);
constexpr auto kPollPause = std::chrono::microseconds(50);

struct Executor {
  std::mutex mutex;
  std::condition_variable work_arrived;
  std::vector<CUstream_st*> streams = {new CUstream_st{0, cudaStreamDefault, 0}};
  uint64_t created = 0, sequence = 0, tasks = 0;
  Clock::time_point last_call = Clock::now();
  std::exception_ptr later_failure;
  bool background_started = false, stopping = false;
};

Executor& executor() {
  static Executor* executor = new Executor;  // outlives every thread
  return *executor;
}

std::atomic<Clock::duration> passed{};  // in addition to the time that work really takes

constinit thread_local const Task* running = nullptr;

CUstream_st* resolve(CUstream_st* stream) {
  return stream == nullptr ? executor().streams[0] : stream;
}

// The streams that have work, in the order in which the schedule prefers them.
std::vector<CUstream_st*> by_preference() {
  std::vector<CUstream_st*> order;
  std::copy_if(executor().streams.begin(), executor().streams.end(), std::back_inserter(order),
               [](CUstream_st* s) { return !s->queue.empty(); });
  // Communication before computing; of two streams of one kind, the younger first.
  const auto comm_first = [](CUstream_st* a, CUstream_st* b) {
    return a->priority != b->priority ? a->priority < b->priority : a->number > b->number;
  };
  switch (settings().streams) {
    case StreamOrder::kInOrder:
      std::sort(order.begin(), order.end(), [](CUstream_st* a, CUstream_st* b) {
        return a->queue.front().sequence < b->queue.front().sequence;
      });
      break;
    case StreamOrder::kComputeLate:
      std::sort(order.begin(), order.end(), comm_first);
      break;
    case StreamOrder::kCommLate:
      std::sort(order.rbegin(), order.rend(), comm_first);
      break;
    case StreamOrder::kShuffled: {
      Random random(settings().stream_seed * 0x10001 + executor().tasks);
      shuffle(order.data(), static_cast<int>(order.size()), random);
    }
  }
  return order;
}

// While it exists, a task runs and device memory is open.
class Running {
 public:
  explicit Running(const Task& task) {
    running = &task;
    protect(false);
  }
  ~Running() {
    protect(true);
    running = nullptr;
  }
};

// After a failure no queued work runs, and nothing waits for it.
void drop_queued_work() {
  for (CUstream_st* stream : executor().streams) {
    for (Task& task : stream->queue) {
      if (task.kind == Task::kRecord) {
        task.mark->reached = true;
      }
    }
    stream->queue.clear();
  }
}

// Runs the first task of a stream; false: the task is not finished and stays queued.
bool run_first(CUstream_st* stream) {
  Task& task = stream->queue.front();
  bool finished = true;
  if (task.kind == Task::kWait) {
    finished = task.mark->reached;
  } else if (task.kind == Task::kRecord) {
    task.mark->reached = true;
    task.mark->time = Clock::now() + passed.load();
  } else {
    const Running scope(task);
    finished = task.run();
  }
  if (finished) {
    ++executor().tasks;
    next_operation();
    stream->queue.pop_front();
  }
  return finished;
}

enum class Step { kRan, kPolling, kStuck, kEmpty };

Step step() {
  bool polling = false, any = false;
  try {
    for (CUstream_st* stream : by_preference()) {
      any = true;
      polling = polling || stream->queue.front().kind == Task::kPoll;
      if (run_first(stream)) {
        return Step::kRan;
      }
    }
  } catch (...) {
    drop_queued_work();
    throw;
  }
  return polling ? Step::kPolling : any ? Step::kStuck : Step::kEmpty;
}

void throw_later_failure() {
  if (executor().later_failure) {
    std::rethrow_exception(std::exchange(executor().later_failure, nullptr));
  }
}

// Runs tasks while the host does not call the runtime, because other ranks may wait for them.
void work_in_background() {
  Executor& e = executor();
  std::unique_lock lock(e.mutex);
  for (;;) {
    e.work_arrived.wait(lock, [] { return !all_streams_empty(); });
    Step result = Step::kStuck;
    if (!e.stopping && !settings().protect && Clock::now() - e.last_call > kIdle) {
      try {
        result = step();
      } catch (...) {
        e.later_failure = std::current_exception();
      }
    }
    lock.unlock();
    if (result == Step::kRan) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(result == Step::kPolling ? kPollPause : kPollPause * 20);
    }
    lock.lock();
  }
}

void start_background() {
  Executor& e = executor();
  if (!e.background_started) {
    e.background_started = true;
    std::thread(work_in_background).detach();
    std::atexit([] {
      std::lock_guard lock(executor().mutex);
      executor().stopping = true;
    });
  }
}

}  // namespace

RuntimeLock::RuntimeLock() {
  if (running != nullptr) {
    fail("CUDA call from work on a stream");
  }
  lock_ = std::unique_lock(executor().mutex);
  executor().last_call = Clock::now();
}

CUstream_st* create_stream(unsigned flags, int priority) {
  executor().streams.push_back(new CUstream_st{++executor().created, flags, priority});
  return executor().streams.back();
}

void destroy_stream(RuntimeLock& lock, CUstream_st* stream) {
  run_until(lock, stream_is_empty(stream));
  std::erase(executor().streams, stream);
  delete stream;
}

bool is_stream(CUstream_st* stream) {
  return stream == nullptr ||
         std::count(executor().streams.begin() + 1, executor().streams.end(), stream) != 0;
}

void push(RuntimeLock& lock, CUstream_st* stream, Task task) {
  Executor& e = executor();
  if (!is_stream(stream)) {
    fail("work on a stream that does not exist", task.name);
  }
  if (keep_in_capture(stream, task)) {
    return;
  }
  if (task.begin) {
    task.run = task.begin();
  }
  ++counters().enqueued;
  // The legacy stream and those created without cudaStreamNonBlocking wait for each other.
  for (CUstream_st* other : e.streams) {
    if ((stream == nullptr && other->number != 0 && other->flags == cudaStreamDefault) ||
        (stream != nullptr && stream->flags == cudaStreamDefault && other->number == 0)) {
      run_until(lock, stream_is_empty(other));
    }
  }
  start_background();
  task.sequence = ++e.sequence;
  resolve(stream)->queue.push_back(std::move(task));
  e.work_arrived.notify_one();
}

void run_until(RuntimeLock& lock, const std::function<bool()>& reached) {
  for (throw_later_failure(); !reached(); throw_later_failure()) {
    const Step result = step();
    if (result == Step::kStuck || result == Step::kEmpty) {
      drop_queued_work();
      fail("the host waits for work that cannot run",
           "streams wait for events of each other, or for one that is never recorded");
    }
    if (result == Step::kPolling) {
      lock.lock().unlock();
      std::this_thread::sleep_for(kPollPause);
      lock.lock().lock();
    }
    executor().last_call = Clock::now();
  }
}

void run_a_little(RuntimeLock&) { step(); }

std::function<bool()> stream_is_empty(CUstream_st* stream) {
  return [queue = &resolve(stream)->queue] { return queue->empty(); };
}

bool all_streams_empty() {
  return std::all_of(executor().streams.begin(), executor().streams.end(),
                     [](CUstream_st* stream) { return stream->queue.empty(); });
}

bool others_are_awaited() {
  return std::ranges::any_of(executor().streams, [](CUstream_st* stream) {
    return std::ranges::any_of(stream->queue, &Task::with_others);
  });
}

void synchronize_device() {
  RuntimeLock lock;
  run_until(lock, all_streams_empty);
}

std::string running_task() { return running == nullptr ? "" : running->name; }

void fail_later(const std::string& message) {
  executor().later_failure = std::make_exception_ptr(Failure(message));
}

int64_t time_ns() {
  return std::chrono::nanoseconds((Clock::now() + passed.load()).time_since_epoch()).count();
}

void pass_time(double seconds) {
  passed = passed.load() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void enqueue(CUstream_st* stream, std::string name, std::function<void()> work) {
  RuntimeLock lock;
  push(lock, stream, {Task::kWork, std::move(name), [work = std::move(work)] {
                        work();
                        return true;
                      }});
}

void enqueue_polled(CUstream_st* stream, std::string name, std::function<bool()> poll,
                    bool with_others) {
  enqueue_begun(
      stream, std::move(name), [poll = std::move(poll)] { return poll; }, with_others);
}

void enqueue_begun(CUstream_st* stream, std::string name,
                   std::function<std::function<bool()>()> begin, bool with_others) {
  RuntimeLock lock;
  Task task{Task::kPoll, std::move(name), nullptr};
  task.with_others = with_others;
  task.begin = std::move(begin);
  push(lock, stream, std::move(task));
}

}  // namespace simt
