// Streams and events: queues of tasks, and the executor that decides which queue runs next.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

struct CUstream_st;

namespace simt {

struct Capture;

struct Mark {  // one recording of an event
  bool reached = false;
  std::chrono::steady_clock::time_point time = {};
  std::shared_ptr<Capture> capture = {};  // that it was recorded in; it is never reached
  std::vector<size_t> seen = {};  // of each branch of the capture, so many tasks come before
};

struct Task {
  enum Kind { kWork, kPoll, kRecord, kWait };
  Kind kind;
  std::string name;
  std::function<bool()> run;        // kWork; kPoll: false when not finished
  std::shared_ptr<Mark> mark = {};  // kRecord, kWait
  uint64_t sequence = 0;            // over all streams, in the order of the host's calls
  bool with_others = false;         // kPoll: other processes take part
  std::function<std::function<bool()>()> begin = {};  // in a graph: returns `run` at each launch
};

// Held by every call of the runtime API. Tasks run under it; calling the API in one is a failure.
class RuntimeLock {
 public:
  RuntimeLock();
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

CUstream_st* create_stream(unsigned flags, int priority);
void destroy_stream(RuntimeLock& lock, CUstream_st* stream);
bool is_stream(CUstream_st* stream);  // also true for null, the legacy stream
void push(RuntimeLock& lock, CUstream_st* stream, Task task);

// Runs queued tasks until `reached` holds. It is a failure if no task is left before that.
void run_until(RuntimeLock& lock, const std::function<bool()>& reached);
// Runs at most one task.
void run_a_little(RuntimeLock& lock);
std::function<bool()> stream_is_empty(CUstream_st* stream);
bool all_streams_empty();
bool others_are_awaited();  // whether queued work needs other processes

void synchronize_device();
std::string running_task();  // the name of the task that this thread runs, or ""

// For a failure that cannot be thrown where it happens: run_until throws it.
void fail_later(const std::string& message);

}  // namespace simt

struct CUstream_st {
  uint64_t number;
  unsigned flags;
  int priority;  // below zero: communication
  std::deque<simt::Task> queue = {};
  std::shared_ptr<simt::Capture> capture = {};  // that keeps its work now
  size_t branch = 0;                            // of the capture
};

struct CUevent_st {
  bool timing;
  std::shared_ptr<simt::Mark> mark = {};  // of the last record; null: never recorded
};
