// The CUDA runtime behind plain functions, for files that do not include CUDA's headers. Only
// builds with CUDA (kHasCuda) have them. Everything here throws Error for what CUDA refuses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

struct CUstream_st;
struct CUevent_st;

namespace tandem::cuda {

// GPUs that this process can use: 0 without a driver.
int device_count();
// Why there are none: CUDA's words.
std::string why_no_device();
// The GPU of this process from now on, in [0, device_count()).
void use_device(int device);
// Of the device in use.
int64_t device_bytes();
std::string device_name();  // "NVIDIA H200"
// Of CUDA: the newest that the driver knows, and the one built in.
std::string versions();  // "driver for CUDA 13.0, built with 13.0"

// Null when the memory is exhausted.
void* allocate(int64_t bytes);
void release(void* data);
void* allocate_pinned(int64_t bytes);
void release_pinned(void* data);

// In the order of a stream, a pair: the stream's next allocation takes what was released before it.
void* allocate(int64_t bytes, CUstream_st* stream);
void release(void* data, CUstream_st* stream);
// Between any two memories; from or to pageable host memory the call returns when the host's side
// may be touched again.
void copy(const void* from, void* to, int64_t bytes, CUstream_st* stream);
void zero(void* data, int64_t bytes, CUstream_st* stream);

struct StreamDeleter {
  void operator()(CUstream_st* stream) const;
};
using StreamHandle = std::unique_ptr<CUstream_st, StreamDeleter>;
StreamHandle make_stream(bool high_priority);
void synchronize(CUstream_st* stream);

struct EventDeleter {
  void operator()(CUevent_st* event) const;
};
using EventHandle = std::unique_ptr<CUevent_st, EventDeleter>;
EventHandle record(CUstream_st* stream);
void wait(CUstream_st* stream, CUevent_st* event);
bool reached(CUevent_st* event);
void synchronize(CUevent_st* event);
double seconds_between(CUevent_st* earlier, CUevent_st* later);

}  // namespace tandem::cuda
