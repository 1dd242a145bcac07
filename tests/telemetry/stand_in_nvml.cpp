// A library in place of NVML, with 8 GPUs. GPU g has figures that tell it from the others, and
// g + 1 J of energy more at each look at its counter. Some GPUs are special:
//   1 is held down by heat     2 has an Xid (79) twice 3 has no energy counter, 4 no NVLink
//   5 has a new ECC error at the second look           6 hangs when its temperature is asked for
// STAND_IN_OLD: without energy, remapped rows and events, and with the older name of throttling.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

namespace {

enum { kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6, kTimeout = 10 };

struct Gpu {
  uint64_t looks_at_energy = 0, looks_at_links = 0, looks_at_ecc = 0;
  int xids = 0;
};
Gpu gpus[8];

uint64_t number_of(void* gpu) { return static_cast<uint64_t>(static_cast<Gpu*>(gpu) - gpus); }

std::mutex mutex;
std::condition_variable freed;
bool hangs = true;

int set_handle(unsigned index, void** gpu) {
  if (index >= 8) {
    return kNotFound;
  }
  *gpu = &gpus[index];
  return kSuccess;
}

}  // namespace

// What a test says to it.
extern "C" {

void stand_in_end_hanging() {
  const std::lock_guard lock(mutex);
  hangs = false;
  freed.notify_all();
}

}  // extern "C"

extern "C" {

int nvmlInit_v2() { return kSuccess; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** gpu) { return set_handle(index, gpu); }

int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** gpu) {
  unsigned domain = 0, bus = 0, device = 0;
  if (std::sscanf(address, "%x:%x:%x", &domain, &bus, &device) != 3 || bus % 16 != 0) {
    return kInvalidArgument;
  }
  return set_handle(bus / 16, gpu);
}

// nvmlPciInfo_t: the bus is g * 16.
int nvmlDeviceGetPciInfo_v3(void* gpu, void* info) {
  const auto bus = static_cast<unsigned>(16 * number_of(gpu));
  std::snprintf(static_cast<char*>(info) + 36, 32, "%08X:%02X:00.0", 0, bus);
  return kSuccess;
}

int nvmlDeviceGetUtilizationRates(void* gpu, unsigned percent[2]) {
  percent[0] = static_cast<unsigned>(10 * number_of(gpu) + 5);
  percent[1] = 99;
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo(void* gpu, unsigned long long bytes[3]) {
  bytes[0] = uint64_t{80} << 30;
  bytes[2] = (number_of(gpu) + 1) << 30;
  bytes[1] = bytes[0] - bytes[2];
  return kSuccess;
}

int nvmlDeviceGetPowerUsage(void* gpu, unsigned* mw) {
  *mw = static_cast<unsigned>(100500 + 1000 * number_of(gpu));
  return kSuccess;
}

int nvmlDeviceGetTemperature(void* gpu, int sensor, unsigned* degrees) {
  if (number_of(gpu) == 6) {
    std::unique_lock lock(mutex);
    freed.wait(lock, [] { return !hangs; });
  }
  *degrees = static_cast<unsigned>(40 + number_of(gpu));
  return sensor == 0 ? kSuccess : kInvalidArgument;
}

int nvmlDeviceGetClockInfo(void* gpu, int type, unsigned* mhz) {
  *mhz = static_cast<unsigned>(1000 + 100 * number_of(gpu));
  return type == 1 ? kSuccess : kInvalidArgument;
}

// All GPUs are held down by a setting and by idleness, which do not count.
#if defined(STAND_IN_OLD)
#define nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons
#endif
int nvmlDeviceGetCurrentClocksEventReasons(void* gpu, unsigned long long* reasons) {
  *reasons =
      0x1 | 0x2 | 0x10 | 0x100 | (number_of(gpu) == 1 ? 0x04 | 0x08 | 0x20 | 0x40 | 0x80 : 0);
  return kSuccess;
}

int nvmlDeviceGetTotalEccErrors(void* gpu, int type, int counter, unsigned long long* count) {
  *count = 3 + (number_of(gpu) == 5 && ++gpus[5].looks_at_ecc > 1 ? 2 : 0);
  return type == 1 && counter == 0 ? kSuccess : kInvalidArgument;
}

// nvmlFieldValue_t: 40 bytes. The counters of g grow by g KiB sent and 1 KiB received a look.
int nvmlDeviceGetFieldValues(void* gpu, int count, void* values) {
  const uint64_t g = number_of(gpu), looks = ++gpus[g].looks_at_links;
  for (int i = 0; i < count; ++i) {
    auto* bytes = static_cast<char*>(values) + 40 * i;
    uint32_t field[2];
    std::memcpy(field, bytes, sizeof field);
    const uint64_t kib = field[0] == 138 ? 7000 + looks * g : field[0] == 139 ? 9000 + looks : 0;
    const int code = g == 4            ? kNotSupported
                     : kib == 0        ? kInvalidArgument
                     : field[1] == ~0U ? kSuccess
                                       : kInvalidArgument;
    std::memcpy(bytes + 28, &code, sizeof code);
    std::memcpy(bytes + 32, &kib, sizeof kib);
  }
  return kSuccess;
}

#if !defined(STAND_IN_OLD)

int nvmlDeviceGetTotalEnergyConsumption(void* gpu, unsigned long long* mj) {
  const uint64_t g = number_of(gpu);
  *mj = 1000 * (500 + (g + 1) * ++gpus[g].looks_at_energy);
  return g == 3 ? kNotSupported : kSuccess;
}

int nvmlDeviceGetRemappedRows(void* gpu, unsigned* corrected, unsigned* uncorrected,
                              unsigned* pending, unsigned* failed) {
  *corrected = 11;
  *uncorrected = 12;
  *pending = number_of(gpu) == 5;
  *failed = 0;
  return kSuccess;
}

// A set is the GPU that is registered in it.
int nvmlEventSetCreate(void** set) {
  *set = new void*(nullptr);
  return kSuccess;
}

int nvmlDeviceRegisterEvents(void* gpu, unsigned long long types, void* set) {
  *static_cast<void**>(set) = gpu;
  return types == 8 ? kSuccess : kInvalidArgument;
}

// nvmlEventData_t: 32 bytes.
int nvmlEventSetWait_v2(void* set, void* event, unsigned time_ms) {
  auto* gpu = static_cast<Gpu*>(*static_cast<void**>(set));
  if (number_of(gpu) == 2 && gpu->xids < 2) {
    ++gpu->xids;
    const unsigned long long type_and_code[] = {8, 79};
    std::memcpy(static_cast<char*>(event) + 8, type_and_code, sizeof type_and_code);
    return kSuccess;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(time_ms));
  return kTimeout;
}

int nvmlEventSetFree(void* set) {
  delete static_cast<void**>(set);
  return kSuccess;
}

#endif

}  // extern "C"
