// The runtime API: streams, events, memory.
#include "tests/simt/runtime.h"

#include <cstring>
#include <utility>
#include <vector>

#include "tests/simt/memory.h"
#include "tests/simt/settings.h"
#include "tests/simt/simt.h"
#include "tests/simt/streams/graph.h"
#include "tests/simt/streams/stream.h"

namespace {

using simt::RuntimeLock;
using simt::Task;

Task work(const char* name, std::function<void()> run) {
  return {Task::kWork, name, [run = std::move(run)] {
            run();
            return true;
          }};
}

void block_until(RuntimeLock& lock, const std::function<bool()>& reached) {
  ++simt::counters().host_syncs;
  run_until(lock, reached);
  simt::host_has_waited();
}

// Whether a copy goes to the device, and from it; it is a failure if `kind` says otherwise.
std::pair<bool, bool> direction(const void* to, const void* from, cudaMemcpyKind kind) {
  const bool to_device = simt::is_device(to), from_device = simt::is_device(from);
  const int actual = (from_device ? 2 : 0) + (to_device ? 1 : 0);
  if (kind != cudaMemcpyDefault && kind != actual) {
    simt::fail("copy in the wrong direction", "cudaMemcpyKind " + std::to_string(kind) +
                                                  ", but the pointers ask for " +
                                                  std::to_string(actual));
  }
  return {to_device, from_device};
}

void copy_async(RuntimeLock& lock, void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                cudaStream_t stream) {
  const auto [to_device, from_device] = direction(to, from, kind);
  const bool crosses = to_device != from_device;
  const void* const host = to_device ? from : to;
  const bool pinned = crosses && simt::is_pinned(host);
  if (crosses) {
    simt::Counters& counters = simt::counters();
    (to_device ? counters.bytes_to_device : counters.bytes_to_host) += static_cast<int64_t>(bytes);
  }
  // CUDA stages pageable memory before the call returns; pinned memory is read when the copy runs.
  std::vector<std::byte> staged;
  if (crosses && !pinned) {
    ++simt::counters().pageable_copies;
    if (stream != nullptr && stream->capture) {
      simt::fail("copy of pageable memory in a graph", "it may be gone when the graph is launched");
    }
    if (to_device) {
      const auto* first = static_cast<const std::byte*>(from);
      staged.assign(first, first + bytes);
    }
  }
  // What comes from pinned memory is poison until all of it is there. So a missing wait shows even
  // where the copy changes nothing.
  Task task{Task::kPoll, "cudaMemcpyAsync", nullptr};
  task.begin = [=, to_device = to_device, from_device = from_device, staged = std::move(staged)] {
    return [=, begun = !pinned || !to_device]() mutable {
      if (pinned && !simt::is_pinned(host)) {
        simt::fail("copy of page-locked memory that was freed");
      }
      simt::check_range(to, to_device ? bytes : 0, "destination of cudaMemcpyAsync");
      simt::check_range(from, from_device ? bytes : 0, "source of cudaMemcpyAsync");
      const bool ends = std::exchange(begun, true);
      ends ? std::memmove(to, staged.empty() ? from : staged.data(), bytes)
           : std::memset(to, simt::settings().poison, bytes);
      return ends;
    };
  };
  push(lock, stream, std::move(task));
}

void set_async(RuntimeLock& lock, void* to, int value, size_t bytes, cudaStream_t stream) {
  push(lock, stream, work("cudaMemsetAsync", [=] {
         simt::check_range(to, bytes, "destination of cudaMemsetAsync");
         std::memset(to, value, bytes);
       }));
}

}  // namespace

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  *pointer = nullptr;
  if (bytes == 0 || simt::no_device() != cudaSuccess) {
    return simt::result(simt::no_device());
  }
  simt::Allocation* allocation = simt::allocate(bytes);
  if (allocation == nullptr) {
    return simt::result(cudaErrorMemoryAllocation);
  }
  make_live(*allocation);
  simt::protect(true);
  *pointer = reinterpret_cast<void*>(allocation->begin);
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  if (pointer == nullptr) {
    return simt::result(simt::no_device());
  }
  block_until(lock, simt::all_streams_empty);
  simt::Allocation* allocation = simt::find_to_free(pointer);
  if (allocation == nullptr) {
    return simt::result(cudaErrorInvalidValue);
  }
  simt::protect(false);
  release(*allocation);
  simt::protect(true);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  *pointer = nullptr;
  if (bytes == 0 || simt::no_device() != cudaSuccess) {
    return simt::result(simt::no_device());
  }
  // Memory that the stream has released earlier is available for its later allocations.
  simt::Allocation* allocation = simt::allocate(bytes, true);
  run_until(lock, [&, idle = simt::stream_is_empty(stream)] {
    allocation = allocation == nullptr ? simt::allocate(bytes, true) : allocation;
    return allocation != nullptr || idle();
  });
  if (allocation == nullptr) {
    return simt::result(cudaErrorMemoryAllocation);
  }
  *pointer = reinterpret_cast<void*>(allocation->begin);
  push(lock, stream, work("cudaMallocAsync", [=] { make_live(*allocation); }));
  simt::protect(true);
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  simt::Allocation* allocation = simt::find_to_free(pointer);
  if (allocation == nullptr) {
    return pointer == nullptr ? cudaSuccess : simt::result(cudaErrorInvalidValue);
  }
  push(lock, stream, work("cudaFreeAsync", [=] {
         allocation->ordered ? release(*allocation) : release_late(*allocation);
       }));
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes, unsigned) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  *pointer = nullptr;
  if (simt::no_device() != cudaSuccess) {
    return simt::result(simt::no_device());
  }
  *pointer = simt::allocate_pinned(bytes);
  return simt::result(*pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return cudaMallocHost(pointer, bytes, flags);
}

cudaError_t cudaFreeHost(void* pointer) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  if (pointer == nullptr) {
    return cudaSuccess;
  }
  block_until(lock, simt::all_streams_empty);
  return simt::result(simt::free_pinned(pointer) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  RuntimeLock lock;
  *total = simt::device_bytes();
  *available = *total - simt::allocated_bytes();
  return simt::result(simt::no_device());
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  RuntimeLock lock;
  if (bytes != 0) {
    copy_async(lock, to, from, bytes, kind, stream);
    // As in CUDA, a copy to pageable memory returns when it is done.
    if (simt::is_device(from) && !simt::is_device(to) && !simt::is_pinned(to)) {
      block_until(lock, simt::stream_is_empty(stream));
    }
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  if (bytes != 0) {
    copy_async(lock, to, from, bytes, kind, nullptr);
    block_until(lock, simt::stream_is_empty(nullptr));
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  RuntimeLock lock;
  set_async(lock, to, value, bytes, stream);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  RuntimeLock lock;
  *stream = nullptr;
  if (simt::no_device() == cudaSuccess) {
    *stream = simt::create_stream(flags, priority);
  }
  return simt::result(simt::no_device());
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  if (stream == nullptr || !simt::is_stream(stream)) {
    return simt::result(cudaErrorInvalidResourceHandle);
  }
  destroy_stream(lock, stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  if (!simt::is_stream(stream)) {
    return simt::result(cudaErrorInvalidResourceHandle);
  }
  block_until(lock, simt::stream_is_empty(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  if (!simt::is_stream(stream)) {
    return simt::result(cudaErrorInvalidResourceHandle);
  }
  run_a_little(lock);
  return simt::stream_is_empty(stream)() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize() {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  block_until(lock, simt::all_streams_empty);
  return simt::result(simt::no_device());
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  RuntimeLock lock;
  push(lock, stream, work("host function", [=] { function(data); }));
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{(flags & cudaEventDisableTiming) == 0};
  ++simt::counters().events;
  return simt::result(simt::no_device());
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  RuntimeLock lock;
  if (event == nullptr) {
    return simt::result(cudaErrorInvalidResourceHandle);
  }
  auto mark = std::make_shared<simt::Mark>();
  event->mark = mark;
  push(lock, stream, {Task::kRecord, "cudaEventRecord", nullptr, mark});
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  RuntimeLock lock;
  if (event == nullptr) {
    return simt::result(cudaErrorInvalidResourceHandle);
  }
  if (event->mark != nullptr) {
    if (const cudaError_t error = join_capture(stream, *event->mark); error != cudaSuccess) {
      return simt::result(error);
    }
    push(lock, stream, {Task::kWait, "cudaStreamWaitEvent", nullptr, event->mark});
  }
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  if (event == nullptr) {
    return simt::result(cudaErrorInvalidResourceHandle);
  }
  if (event->mark == nullptr) {
    return cudaSuccess;
  }
  if (event->mark->capture) {
    return simt::result(cudaErrorCapturedEvent);
  }
  if (!event->mark->reached) {
    run_a_little(lock);
  }
  return event->mark->reached ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  RuntimeLock lock;
  if (const cudaError_t refused = simt::refuse_in_capture(); refused != cudaSuccess) {
    return refused;
  }
  if (event == nullptr) {
    return simt::result(cudaErrorInvalidResourceHandle);
  }
  if (event->mark != nullptr && event->mark->capture) {
    return simt::result(cudaErrorCapturedEvent);
  }
  block_until(lock, [mark = event->mark] { return mark == nullptr || mark->reached; });
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  RuntimeLock lock;
  if (!start->timing || !end->timing || start->mark == nullptr || end->mark == nullptr) {
    return simt::result(cudaErrorInvalidResourceHandle);
  }
  if (start->mark->capture || end->mark->capture) {
    return simt::result(cudaErrorCapturedEvent);
  }
  if (!start->mark->reached || !end->mark->reached) {
    return cudaErrorNotReady;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->mark->time - start->mark->time).count();
  return cudaSuccess;
}
