// The CUDA runtime behind plain functions, for files that do not include CUDA's headers. Only
// builds with CUDA (kHasCuda) have them. They throw Error when CUDA reports a failure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace tandem::cuda {

// GPUs that this process can use: 0 without a driver. Error kTemporary if they are not ready.
int device_count();
// Why there are none, in CUDA's words.
std::string why_no_device();
// Makes `device`, in [0, device_count()), the GPU of this process. Error kConfig if it is older
// than the code in this program.
void use_device(int device);
// Of the GPU in use: all memory, and what no process has taken.
struct DeviceBytes {
  int64_t all, free;
};
DeviceBytes device_bytes();
std::string device_name();       // "NVIDIA H200"
std::string pci_address();       // "0000:8a:00.0"; empty where there is no PCI
int compute_capability();        // 90 for sm_90
int64_t largest_shared_bytes();  // of a block that asks for them, static and dynamic together
// CUDA versions: the newest that the driver supports, and the one that Tandem was built with.
std::string versions();  // "driver for CUDA 13.0, built with 13.0"

// Loads all of this program's kernels onto the GPU in use. Without it CUDA loads a kernel at its
// first launch, before which it may wait for all work of the GPU.
void load_kernels();

// Null when the memory is exhausted.
void* allocate(int64_t bytes);
void release(void* data);
void* allocate_pinned(int64_t bytes);
void release_pinned(void* data);

// The same in stream order: later allocations on the stream may reuse what was released before.
void* allocate(int64_t bytes, CUstream_st* stream);
void release(void* data, CUstream_st* stream);
// Copies in stream order between host and device memories of any kind. With pageable host memory
// the call returns only when the host may use that memory again.
void copy(const void* from, void* to, int64_t bytes, CUstream_st* stream);
void zero(void* data, int64_t bytes, CUstream_st* stream);

struct StreamDeleter {
  void operator()(CUstream_st* stream) const;
};
using StreamHandle = std::unique_ptr<CUstream_st, StreamDeleter>;
StreamHandle make_stream(bool high_priority);
void synchronize(CUstream_st* stream);

// An event that nobody holds is recorded again later. timed: for seconds_between().
using EventHandle = std::shared_ptr<CUevent_st>;
EventHandle record(CUstream_st* stream, bool timed);
void wait(CUstream_st* stream, CUevent_st* event);
bool reached(CUevent_st* event);
void synchronize(CUevent_st* event);
double seconds_between(CUevent_st* earlier, CUevent_st* later);

// Calls run(), and keeps for a graph what it asks of the stream, and of streams that wait for its
// events. Nothing of that runs before launch().
using GraphHandle = std::shared_ptr<CUgraphExec_st>;
GraphHandle capture(CUstream_st* stream, const std::function<void()>& run);
bool is_capturing(CUstream_st* stream);
void launch(CUgraphExec_st* graph, CUstream_st* stream);

}  // namespace tandem::cuda
