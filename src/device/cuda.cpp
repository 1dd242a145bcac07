#include "src/device/cuda.h"

#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/error.h"
#include "src/device/cuda_check.h"
#include "src/device/profiler_range.h"

namespace tandem::cuda {

namespace {

std::atomic<int> device_in_use{0};

std::string gpu_and_host() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return str("GPU ", device_in_use.load(), " of host ", host);
}

// The GPU, or the Fabric Manager that connects it with others, is at fault: another machine may do
// the same work. An illegal address is not among these: it is a wrong kernel.
bool is_sick(cudaError_t code) {
  switch (code) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorSystemNotReady:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

[[noreturn]] void fail_cuda(cudaError_t code, std::string_view place) {
  const ExitCode exit_code = code == cudaErrorMemoryAllocation ? ExitCode::kOutOfMemory
                             : is_sick(code)                   ? ExitCode::kTemporary
                                                               : ExitCode::kInternal;
  fail(exit_code, str("CUDA: ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ") ", place,
                      ", on ", gpu_and_host()));
}

}  // namespace

void check(cudaError_t code, std::source_location place) {
  if (code != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // clears it: it is reported here
    fail_cuda(code, str("in ", place.function_name()));
  }
}

void check_launch(const char* launch) {
  if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) {
    fail_cuda(code, str("when starting a kernel, in ", launch));
  }
}

void load_kernels() {
  for (const void* kernel : kernels()) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, kernel));
  }
}

int device_count() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorSystemNotReady) {
    check(code);  // there are GPUs, and their Fabric Manager does not run
  }
  static_cast<void>(cudaGetLastError());
  return code == cudaSuccess ? count : 0;
}

std::string why_no_device() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  return cudaGetErrorString(code);
}

void use_device(int device) {
  device_in_use = device;
  check(cudaSetDevice(device));
  if (compute_capability() < TANDEM_OLDEST_GPU) {
    fail(ExitCode::kConfig, gpu_and_host(), ", ", device_name(), ", is of generation sm_",
         compute_capability(), ", and this program has code from sm_", TANDEM_OLDEST_GPU,
         " on; use a newer GPU, or compute on the CPU");
  }
}

DeviceBytes device_bytes() {
  size_t free_bytes = 0, all_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &all_bytes));
  return {static_cast<int64_t>(all_bytes), static_cast<int64_t>(free_bytes)};
}

namespace {

cudaDeviceProp properties() {
  cudaDeviceProp result{};
  check(cudaGetDeviceProperties(&result, device_in_use));
  return result;
}

}  // namespace

std::string device_name() { return properties().name; }

std::string pci_address() {
  char address[32] = {};
  const cudaError_t code = cudaDeviceGetPCIBusId(address, sizeof address, device_in_use);
  if (code == cudaErrorNotSupported) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  check(code);
  return address;
}

int compute_capability() { return properties().major * 10 + properties().minor; }

int64_t largest_shared_bytes() {
  int bytes = 0;
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_in_use));
  return bytes;
}

std::string versions() {
  int driver = 0, built = 0;
  check(cudaDriverGetVersion(&driver));
  check(cudaRuntimeGetVersion(&built));
  const auto text = [](int version) { return str(version / 1000, ".", version % 1000 / 10); };
  return str("driver for CUDA ", text(driver), ", built with ", text(built));
}

namespace {

// Null instead of an error when there is no memory left. `data` is read after the call that sets
// it has returned `code`.
void* unless_exhausted(cudaError_t code, void* const& data) {
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  check(code);
  return data;
}

}  // namespace

void* allocate(int64_t bytes) {
  void* data = nullptr;
  return unless_exhausted(cudaMalloc(&data, static_cast<size_t>(bytes)), data);
}

void release(void* data) { static_cast<void>(cudaFree(data)); }

void* allocate_pinned(int64_t bytes) {
  void* data = nullptr;
  return unless_exhausted(cudaMallocHost(&data, static_cast<size_t>(bytes)), data);
}

void release_pinned(void* data) { static_cast<void>(cudaFreeHost(data)); }

void* allocate(int64_t bytes, CUstream_st* stream) {
  void* data = nullptr;
  return unless_exhausted(cudaMallocAsync(&data, static_cast<size_t>(bytes), stream), data);
}

void release(void* data, CUstream_st* stream) { static_cast<void>(cudaFreeAsync(data, stream)); }

void copy(const void* from, void* to, int64_t bytes, CUstream_st* stream) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream));
}

void zero(void* data, int64_t bytes, CUstream_st* stream) {
  check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream));
}

void StreamDeleter::operator()(CUstream_st* stream) const {
  static_cast<void>(cudaStreamSynchronize(stream));
  static_cast<void>(cudaStreamDestroy(stream));
}

StreamHandle make_stream(bool high_priority) {
  check(cudaSetDevice(device_in_use));  // CUDA's current device is per thread
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     high_priority ? greatest : least));
  return StreamHandle(stream);
}

void synchronize(CUstream_st* stream) { check(cudaStreamSynchronize(stream)); }

namespace {

// Events that nobody holds, of each device, with and without timing. They are never destroyed: at
// the end of the process CUDA may be gone before they are.
struct IdleEvents {
  using Kind = std::pair<int, bool>;
  std::mutex mutex;
  std::map<Kind, std::vector<cudaEvent_t>> events;

  cudaEvent_t take(Kind kind) {  // null if there is none
    std::lock_guard lock(mutex);
    std::vector<cudaEvent_t>& idle = events[kind];
    if (idle.empty()) {
      return nullptr;
    }
    const cudaEvent_t event = idle.back();
    idle.pop_back();
    return event;
  }
  void put(Kind kind, cudaEvent_t event) {
    std::lock_guard lock(mutex);
    events[kind].push_back(event);
  }
};

}  // namespace

EventHandle record(CUstream_st* stream, bool timed) {
  static IdleEvents* idle = new IdleEvents;
  const IdleEvents::Kind kind(device_in_use, timed);
  cudaEvent_t event = idle->take(kind);
  if (!event) {
    check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  }
  EventHandle handle(event, [kind](cudaEvent_t unused) { idle->put(kind, unused); });
  check(cudaEventRecord(event, stream));
  return handle;
}

void wait(CUstream_st* stream, CUevent_st* event) { check(cudaStreamWaitEvent(stream, event, 0)); }

bool reached(CUevent_st* event) {
  const cudaError_t code = cudaEventQuery(event);
  if (code == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(code);
  return true;
}

void synchronize(CUevent_st* event) { check(cudaEventSynchronize(event)); }

double seconds_between(CUevent_st* earlier, CUevent_st* later) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, earlier, later));
  return 1e-3 * milliseconds;
}

// Other threads may call CUDA meanwhile, as that which writes checkpoints does.
GraphHandle capture(CUstream_st* stream, const std::function<void()>& run) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    run();
  } catch (...) {
    if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) {
      static_cast<void>(cudaGraphDestroy(graph));
    }
    static_cast<void>(cudaGetLastError());  // the exception says more
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  check(code);
  return {executable,
          [](cudaGraphExec_t unused) { static_cast<void>(cudaGraphExecDestroy(unused)); }};
}

bool is_capturing(CUstream_st* stream) {
  cudaStreamCaptureStatus status{};
  check(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

void launch(CUgraphExec_st* graph, CUstream_st* stream) { check(cudaGraphLaunch(graph, stream)); }

}  // namespace tandem::cuda

namespace tandem::nvtx {

void push(const char* name) { nvtxRangePushA(name); }
void pop() { nvtxRangePop(); }
void capture(bool on) {
  // An error means that no profiler listens. It must not be taken for that of a later launch.
  if ((on ? cudaProfilerStart() : cudaProfilerStop()) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
}

}  // namespace tandem::nvtx
