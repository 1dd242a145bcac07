// Streams and events: queues of tasks, and the executor that decides which queue goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

struct CUstream_st;

namespace simt {

struct Mark {  // one record of an event
  bool reached = false;
  std::chrono::steady_clock::time_point time;
};

struct Task {
  enum Kind { kWork, kPoll, kRecord, kWait };
  Kind kind;
  std::string name;
  std::function<bool()> run;        // kWork; kPoll: false when not finished
  std::shared_ptr<Mark> mark = {};  // kRecord, kWait
  uint64_t sequence = 0;            // over all streams, in the order of the host's calls
  bool with_others = false;         // kPoll: other processes take part
};

// Held by every call of the runtime API. Tasks run under it, and may not call the API: a failure.
class RuntimeLock {
 public:
  RuntimeLock();
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

CUstream_st* create_stream(unsigned flags, int priority);
void destroy_stream(RuntimeLock& lock, CUstream_st* stream);
bool is_stream(CUstream_st* stream);  // null is one, the legacy stream
void push(RuntimeLock& lock, CUstream_st* stream, Task task);

// Runs queued tasks until `reached` holds; nothing left to run before it does is a failure.
void run_until(RuntimeLock& lock, const std::function<bool()>& reached);
// Runs at most one task.
void run_a_little(RuntimeLock& lock);
std::function<bool()> stream_is_empty(CUstream_st* stream);
bool all_streams_empty();
bool others_are_awaited();  // work that other processes take part in is queued

void synchronize_device();
std::string running_task();  // its name, while this thread runs one; else ""

// A failure that cannot be thrown where it happens: run_until will.
void fail_later(const std::string& message);

}  // namespace simt

struct CUstream_st {
  uint64_t number;
  unsigned flags;
  int priority;  // below zero: communication
  std::deque<simt::Task> queue = {};
};

struct CUevent_st {
  bool timing;
  std::shared_ptr<simt::Mark> mark = {};  // of the last record; null: never recorded
};
