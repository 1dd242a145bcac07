// The runtime API: devices and errors.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "tests/simt/runtime.h"
#include "tests/simt/settings.h"
#include "tests/simt/simt.h"

namespace {

constexpr int kVersion = 13000;
constexpr size_t kStaticShared = 48 * 1024;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

struct Unread {
  std::mutex mutex;
  cudaError_t error = cudaSuccess;
  std::string call;
};

Unread& unread() {
  static Unread* unread = new Unread;
  return *unread;
}

// Records that `error` was read.
void read(cudaError_t error) {
  std::lock_guard lock(unread().mutex);
  if (unread().error == error) {
    unread().error = cudaSuccess;
  }
}

struct Text {
  const char* name;
  const char* words;
};

const std::map<cudaError_t, Text>& texts() {
#define TEXT(code, words)  \
  {                        \
    code, { #code, words } \
  }
  static const auto* texts = new std::map<cudaError_t, Text>{
      TEXT(cudaSuccess, "no error"),
      TEXT(cudaErrorInvalidValue, "invalid argument"),
      TEXT(cudaErrorMemoryAllocation, "out of memory"),
      TEXT(cudaErrorInitializationError, "initialization error"),
      TEXT(cudaErrorInvalidConfiguration, "invalid configuration argument"),
      TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
      TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
      TEXT(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
      TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
      TEXT(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
      TEXT(cudaErrorNotReady, "device not ready"),
      TEXT(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
      TEXT(cudaErrorLaunchFailure, "unspecified launch failure"),
      TEXT(cudaErrorSystemNotReady, "system not yet initialized"),
      TEXT(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
      TEXT(cudaErrorStreamCaptureInvalidated,
           "operation failed due to a previous error during capture"),
      TEXT(cudaErrorStreamCaptureUnmatched, "capture was not initiated in this stream"),
      TEXT(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
      TEXT(cudaErrorStreamCaptureIsolation,
           "dependency created on uncaptured work in another stream"),
      TEXT(cudaErrorCapturedEvent,
           "operation not permitted on an event last recorded in a "
           "capturing stream"),
      TEXT(cudaErrorUnknown, "unknown error"),
  };
#undef TEXT
  return *texts;
}

Text text_of(cudaError_t error) {
  const auto found = texts().find(error);
  return found == texts().end() ? Text{"unrecognized error code", "unrecognized error code"}
                                : found->second;
}

bool is_device_number(int device) { return device >= 0 && device < simt::settings().devices; }

}  // namespace

namespace simt {

cudaError_t no_device() {
  return !settings().ready         ? cudaErrorSystemNotReady
         : settings().devices == 0 ? cudaErrorNoDevice
                                   : cudaSuccess;
}

cudaError_t result(cudaError_t error, const char* call) {
  if (error != cudaSuccess) {
    last_error = error;
    std::lock_guard lock(unread().mutex);
    unread().error = error;
    unread().call = call;
    static const int registered = std::atexit(fail_unread_error);
    (void)registered;
  }
  return error;
}

void fail_unread_error() {
  std::unique_lock lock(unread().mutex);
  if (unread().error != cudaSuccess) {
    const cudaError_t error = std::exchange(unread().error, cudaSuccess);
    const std::string call = unread().call;
    lock.unlock();
    fail("unchecked error", call + " returned " + text_of(error).name + ", and nobody asked");
  }
}

}  // namespace simt

cudaError_t cudaGetDeviceCount(int* count) {
  *count = simt::settings().devices;
  return simt::no_device();  // not an error of the caller, so it need not be read again
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device_number(device)) {
    return simt::result(simt::settings().devices == 0 ? cudaErrorNoDevice : cudaErrorInvalidDevice);
  }
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return simt::result(simt::no_device());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  if (!is_device_number(device)) {
    return simt::result(cudaErrorInvalidDevice);
  }
  std::snprintf(properties->name, sizeof properties->name, "emulated GPU");
  properties->totalGlobalMem = simt::settings().memory;
  properties->sharedMemPerBlock = kStaticShared;
  properties->sharedMemPerBlockOptin = simt::settings().shared;
  properties->major = simt::settings().capability / 10;
  properties->minor = simt::settings().capability % 10;
  properties->multiProcessorCount = 108;
  properties->maxThreadsPerBlock = 1024;
  properties->warpSize = warpSize;
  properties->l2CacheSize = 40 << 20;
  properties->pciBusID = simt::settings().first_device + device + 1;
  return cudaSuccess;
}

// Nothing is plugged in.
cudaError_t cudaDeviceGetPCIBusId(char*, int, int) { return cudaErrorNotSupported; }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const std::map<cudaDeviceAttr, int> values = {
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxSharedMemoryPerBlock, static_cast<int>(kStaticShared)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, static_cast<int>(simt::settings().shared)},
      {cudaDevAttrWarpSize, warpSize},
      {cudaDevAttrClockRate, 1410000},
      {cudaDevAttrMultiProcessorCount, 108},
      {cudaDevAttrL2CacheSize, 40 << 20},
      {cudaDevAttrComputeCapabilityMajor, simt::settings().capability / 10},
      {cudaDevAttrComputeCapabilityMinor, simt::settings().capability % 10},
      {cudaDevAttrMemoryPoolsSupported, 1},
  };
  const auto found = values.find(attribute);
  if (found == values.end() || !is_device_number(device)) {
    return simt::result(found == values.end() ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
  }
  *value = found->second;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return simt::result(simt::no_device());
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = simt::settings().devices > 0 ? kVersion : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  read(last_error);
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  read(last_error);
  return last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  read(error);
  return text_of(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
  read(error);
  return text_of(error).words;
}
