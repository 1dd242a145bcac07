// The emulated GPU: its interface for tests and for the emulated libraries (cuBLASLt, NCCL).
//
// Kernels run on the CPU, one block after another; a block's threads are fibers. Streams are
// queues. Nothing runs until the host waits for something, or has not called the runtime for some
// milliseconds; then a background thread goes on. Settings are read from the environment once:
//   TANDEM_SIMT_THREADS   order of a block's threads: forward, backward or shuffled:SEED
//   TANDEM_SIMT_STREAMS   which stream goes first: in-order, compute-late, comm-late, shuffled:SEED
//   TANDEM_SIMT_COPIES    when asynchronous copies to shared memory arrive: late, at the wait
//   (until
//                         then their place is poisoned), or at-once
//   TANDEM_SIMT_MMA       how sums of matrix products are rounded: nearest, or truncate, as
//   hardware TANDEM_SIMT_POISON    byte that fresh device and shared memory is filled with (0xFF:
//   NaN) TANDEM_SIMT_PROTECT   1: the host cannot touch device memory (single-threaded tests only)
//   TANDEM_SIMT_DEVICES   number of devices (8); 0: a machine without a GPU; not-ready: one whose
//                         Fabric Manager does not run
//   CUDA_VISIBLE_DEVICES  a number: the process sees this device alone; empty: none
//   TANDEM_SIMT_CAPABILITY  the generation of the device (80)
//   TANDEM_SIMT_MEMORY    bytes of memory that the device has (40 GiB)
//   TANDEM_SIMT_PINNED    bytes of page-locked memory that the host has (no limit)
//   TANDEM_SIMT_SHARED    the most bytes of shared memory that a block may have (166912)
//   TANDEM_SIMT_COVERAGE  file that the names of executed kernels are appended to at exit
//   TANDEM_SIMT_LAUNCHES  the same for names with template arguments, threads a block, and dynamic
//                         bytes of shared memory, separated by tabs
//   TANDEM_SIMT_GRAPHS    file that a line is appended to at each launch of a graph: how many other
//                         calls since the launch before put something in a stream, took device
//                         memory, and blocked the host; and where a profiler starts and stops
//   TANDEM_SIMT_CUBLASLT  refuse: cuBLASLt does not support any product; timed: its products take
//                         seconds, the second algorithm the fewest, and less with an epilogue;
//                         timed-errs: the same, and that algorithm is wrong
//   TANDEM_SIMT_CUDNN     fast, slow: there is a cuDNN, faster or slower than Tandem's attention by
//   the
//                         clock of events; fast-errs: the first, and its gradient is wrong
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

struct CUstream_st;

namespace simt {

// --- Failures: misuse, for which a GPU would give a wrong result, an error, or no sign at all. ---

class Failure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reports "simt: <what> in kernel <name>, block (x,y,z), thread (x,y,z): <detail>", with the place
// if it is known. Prints this and ends the process with code 99, or calls the handler if there is
// one.
[[noreturn]] void fail(const std::string& what, const std::string& detail = "");

// Sets the handler, which gets the whole message and throws; null: none. Returns the previous one.
using FailureHandler = std::function<void(const std::string&)>;
FailureHandler set_failure_handler(FailureHandler handler);

// Runs `run` and waits for the device; returns the message of the first failure, or "" if there was
// none. When a task fails, all queued work is dropped.
std::string failure_of(const std::function<void()>& run);

// --- Work on streams, for the emulated libraries. ---

// Runs `work` in the order of the stream.
void enqueue(CUstream_st* stream, std::string name, std::function<void()> work);
// Calls `poll` until it returns true; only then does the stream go on. Other streams do not wait
// for it. `with_others`: other processes take part in the work.
void enqueue_polled(CUstream_st* stream, std::string name, std::function<bool()> poll,
                    bool with_others = false);
// Enqueues polled work that has a state. begin() returns `poll`; it is called now, or at each
// launch of the graph for which the stream is captured.
void enqueue_begun(CUstream_st* stream, std::string name,
                   std::function<std::function<bool()>()> begin, bool with_others = false);
// Fails unless [pointer, pointer + bytes) lies in one live device allocation; `what` names the
// operand. Call it inside enqueued work.
void check_range(const void* pointer, size_t bytes, const char* what);
// For events that are recorded from now on so many seconds more have passed.
void pass_time(double seconds);
int64_t time_ns();  // that the clock of the device shows, in nanoseconds
bool in_kernel();   // whether this thread runs a kernel now

// --- Settings, for tests of one process. ---

void set_thread_schedule(std::string_view schedule);  // values as in the environment
void set_stream_schedule(std::string_view schedule);
void set_copy_schedule(std::string_view schedule);
void set_mma_rounding(std::string_view rounding);
void set_poison(uint8_t byte);
void set_protect(bool on);  // for memory that is allocated from now on

// Calls `run`, which returns a result, under every kind of thread and stream schedule and with two
// poisons. Returns "" if all results have the same bits, otherwise the first setting whose result
// differs: "threads=backward".
using Bytes = std::vector<std::byte>;
std::string disagreement(const std::function<Bytes()>& run);

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  return Bytes(first, first + values.size() * sizeof(T));
}

// --- Counters. ---

struct Counters {
  int64_t sectors_read = 0;  // of 32 bytes; see Global in include/src/core/global.h
  int64_t sectors_written = 0;
  int64_t narrow_sectors = 0;  // of both, whose first access was of less than 16 bytes
  int64_t bank_conflicts = 0;  // of accesses through Shared, ldmatrix and copy_async: extra passes
  int64_t products = 0;        // mma instructions of a warp
  int64_t launches = 0;
  int64_t graph_launches = 0;
  int64_t enqueued = 0;    // work, records and waits in streams, except those that graphs hold
  int64_t host_syncs = 0;  // calls that block the host
  int64_t device_allocations = 0;  // cudaMalloc and cudaMallocAsync
  int64_t events = 0;              // created
  int64_t nccl_buffers = 0;        // that communicators have for themselves
  int64_t pageable_copies = 0;     // between the device and host memory that is not pinned
  int64_t bytes_to_device = 0;     // that are copied from the host
  int64_t bytes_to_host = 0;       // that are copied from the device
};
Counters& counters();

// Called for each kernel and matrix product as the host enqueues it. The text holds all arguments,
// so that calls with equal texts are the same call. Null: no observer.
using LaunchObserver = std::function<void(const std::string& text)>;
LaunchObserver& launch_observer();

}  // namespace simt
