// The emulated GPU: what tests and the emulated libraries (cuBLASLt, NCCL) see of it.
//
// Kernels run on the CPU, a block's threads as fibers, one block after another. Streams are queues:
// nothing runs before the host waits for something, or has left the runtime alone for some
// milliseconds (then a background thread works on). Settings are read from the environment once:
//   TANDEM_SIMT_THREADS   order of a block's threads: forward, backward or shuffled:SEED
//   TANDEM_SIMT_STREAMS   which stream goes first: in-order, compute-late, comm-late, shuffled:SEED
//   TANDEM_SIMT_POISON    byte that fresh device and shared memory is filled with (0xFF: NaN)
//   TANDEM_SIMT_PROTECT   1: the host cannot touch device memory (one-threaded tests only)
//   TANDEM_SIMT_DEVICES   number of devices (8); 0: a machine without a GPU
//   TANDEM_SIMT_MEMORY    bytes of memory that the device has (40 GiB)
//   TANDEM_SIMT_COVERAGE  file that the names of executed kernels are appended to at exit
//   CUDA_MODULE_LOADING   LAZY, as in CUDA: a kernel is loaded when it is first launched
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

// --- Failures: misuse that a GPU would answer with a wrong result, an error or nothing at all. ---

class Failure : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reports "simt: <what> in kernel <name>, block (x,y,z), thread (x,y,z): <detail>", the place where
// it is known. Prints it and ends the process with code 99; with a handler, calls that instead.
[[noreturn]] void fail(const std::string& what, const std::string& detail = "");

// The handler gets the whole message and throws; null: none. Returns the one before.
using FailureHandler = std::function<void(const std::string&)>;
FailureHandler set_failure_handler(FailureHandler handler);

// Runs `run` and waits for the device; returns the message of the first failure, or "" if there was
// none. What streams held when a task failed is dropped.
std::string failure_of(const std::function<void()>& run);

// --- Work on streams, for the emulated libraries. ---

// Runs `work` in the order of the stream.
void enqueue(CUstream_st* stream, std::string name, std::function<void()> work);
// Calls `poll` until it returns true, without holding up other streams; only then the stream goes
// on. `with_others`: other processes take part in it.
void enqueue_polled(CUstream_st* stream, std::string name, std::function<bool()> poll,
                    bool with_others = false);
// Fails unless [pointer, pointer + bytes) lies in one live device allocation; `what` names the
// operand. For use inside enqueued work.
void check_range(const void* pointer, size_t bytes, const char* what);
bool in_kernel();  // on this thread, now

// --- Settings, for tests of one process. ---

void set_thread_schedule(std::string_view schedule);  // values as in the environment
void set_stream_schedule(std::string_view schedule);
void set_poison(uint8_t byte);
void set_protect(bool on);  // for memory that is allocated from now on

// Runs `run`, which returns a result, under every kind of thread and stream schedule and with two
// poisons. Returns "" if all results are the same bit for bit, else the first setting that gives
// another: "threads=backward".
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
  int64_t launches = 0;
  int64_t host_syncs = 0;          // calls that block the host
  int64_t device_allocations = 0;  // cudaMalloc and cudaMallocAsync
  int64_t pageable_copies = 0;     // between the device and host memory that is not pinned
};
Counters& counters();

// Is told of each kernel and matrix product as the host enqueues it, with all its arguments, so
// that two calls with equal texts are the same call. Null: nobody is told.
using LaunchObserver = std::function<void(const std::string& text)>;
LaunchObserver& launch_observer();

}  // namespace simt
