#include "src/telemetry/nvml.h"

#include <dlfcn.h>

#include <array>
#include <thread>
#include <utility>
#include <vector>

#include "src/core/error.h"

namespace tandem {

namespace {

// nvmlReturn_t, with the code that a function has which is not there.
constexpr int kSuccess = 0, kTimeout = 10, kFunctionNotFound = 13;
constexpr int kClockSm = 1;                          // nvmlClockType_t
constexpr int kTemperatureGpu = 0;                   // nvmlTemperatureSensors_t
constexpr int kUncorrected = 1, kVolatile = 0;       // of nvmlDeviceGetTotalEccErrors
constexpr unsigned long long kXidCriticalError = 8;  // of nvmlEventType
constexpr unsigned kNvlinkSent_KiB = 138, kNvlinkReceived_KiB = 139;  // NVML_FI_DEV_NVLINK_...
constexpr unsigned kAllLinks = ~0U;

struct Utilization {  // nvmlUtilization_t, percent
  unsigned gpu, memory;
};
struct MemoryInfo {  // nvmlMemory_t, bytes
  unsigned long long total, free, used;
};
struct PciInfo {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct FieldValue {  // nvmlFieldValue_t
  unsigned field_id, scope_id;
  long long timestamp, latency_us;
  int value_type, code;
  unsigned long long value;  // nvmlValue_t: a union, of which counters fill 4 or 8 bytes
};
struct EventData {  // nvmlEventData_t
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(PciInfo) == 68 && sizeof(FieldValue) == 40 && sizeof(EventData) == 32);

// nvmlClocksEventReasons that slow down a GPU with work to do.
struct Reason {
  unsigned long long bit;
  const char* name;
};
constexpr std::array<Reason, 5> kSlowdowns = {{{0x04, "software power cap"},
                                               {0x08, "hardware slowdown"},
                                               {0x20, "software thermal slowdown"},
                                               {0x40, "hardware thermal slowdown"},
                                               {0x80, "hardware power brake"}}};

}  // namespace

// The arguments must have exactly the types of the function's parameters; enums are int.
template <class... Arguments>
int NvmlGpu::code_of(const char* function, Arguments... arguments) const {
  const auto body = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, function));
  return body ? body(arguments...) : kFunctionNotFound;
}

template <class... Arguments>
bool NvmlGpu::call(const char* function, Arguments... arguments) const {
  return code_of(function, arguments...) == kSuccess;
}

NvmlGpu::NvmlGpu(const std::string& library, const std::string& gpu)
    : library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (!library_) {
    fail(ExitCode::kConfig, dlerror());
  }
  if (const int code = code_of("nvmlInit_v2"); code != kSuccess) {
    fail(ExitCode::kConfig, str(library, " does not start (NVML's error ", code, ")"));
  }
  const int code =
      gpu.find(':') == std::string::npos
          ? code_of("nvmlDeviceGetHandleByIndex_v2", static_cast<unsigned>(std::stoul(gpu)), &gpu_)
          : code_of("nvmlDeviceGetHandleByPciBusId_v2", gpu.c_str(), &gpu_);
  if (code != kSuccess) {
    fail(ExitCode::kConfig, str(library, " has no GPU ", gpu, " (NVML's error ", code, ")"));
  }
  PciInfo info{};
  address_ = call("nvmlDeviceGetPciInfo_v3", gpu_, &info) ? info.bus_id : gpu;
  if (!call("nvmlEventSetCreate", &events_) ||
      !call("nvmlDeviceRegisterEvents", gpu_, kXidCriticalError, events_)) {
    call("nvmlEventSetFree", std::exchange(events_, nullptr));
  }
}

template <class T>
std::optional<double> NvmlGpu::number(const char* function) const {
  T value = 0;
  return call(function, gpu_, &value) ? std::optional(static_cast<double>(value)) : std::nullopt;
}

std::optional<std::string> NvmlGpu::throttled_by() const {
  unsigned long long bits = 0;
  if (!call("nvmlDeviceGetCurrentClocksEventReasons", gpu_, &bits) &&
      !call("nvmlDeviceGetCurrentClocksThrottleReasons", gpu_, &bits)) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  for (const Reason& reason : kSlowdowns) {
    if (bits & reason.bit) {
      names.emplace_back(reason.name);
    }
  }
  return joined(names);
}

std::optional<double> NvmlGpu::nvlink_bytes() const {
  std::array<FieldValue, 2> values{};
  values[0].field_id = kNvlinkSent_KiB;
  values[1].field_id = kNvlinkReceived_KiB;
  values[0].scope_id = values[1].scope_id = kAllLinks;
  double bytes = 0;
  if (!call("nvmlDeviceGetFieldValues", gpu_, 2, values.data())) {
    return std::nullopt;
  }
  for (const FieldValue& value : values) {
    if (value.code != kSuccess) {
      return std::nullopt;
    }
    bytes += 1024 * static_cast<double>(value.value);
  }
  return bytes;
}

NvmlGpu::Sample NvmlGpu::sample() const {
  Sample sample;
  GpuUse& now = sample.figures;
  if (Utilization use{}; call("nvmlDeviceGetUtilizationRates", gpu_, &use)) {
    now[GpuFigure::kUse] = use.gpu / 100.0;
  }
  if (MemoryInfo memory{}; call("nvmlDeviceGetMemoryInfo", gpu_, &memory)) {
    now[GpuFigure::kMemoryBytes] = static_cast<double>(memory.used);
  }
  if (const auto mw = number<unsigned>("nvmlDeviceGetPowerUsage")) {
    now[GpuFigure::kPowerW] = *mw / 1000;
  }
  if (const auto mj = number<unsigned long long>("nvmlDeviceGetTotalEnergyConsumption")) {
    now[GpuFigure::kEnergyJ] = *mj / 1000;
  }
  if (unsigned value = 0; call("nvmlDeviceGetTemperature", gpu_, kTemperatureGpu, &value)) {
    now[GpuFigure::kTemperatureC] = value;
  }
  if (unsigned value = 0; call("nvmlDeviceGetClockInfo", gpu_, kClockSm, &value)) {
    now[GpuFigure::kClockMhz] = value;
  }
  if (const auto reasons = throttled_by()) {
    now[GpuFigure::kThrottled] = !reasons->empty();
    sample.throttled_by = *reasons;
  }
  if (unsigned long long count = 0;
      call("nvmlDeviceGetTotalEccErrors", gpu_, kUncorrected, kVolatile, &count)) {
    now[GpuFigure::kEccErrors] = static_cast<double>(count);
  }
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (call("nvmlDeviceGetRemappedRows", gpu_, &corrected, &uncorrected, &pending, &failed)) {
    now[GpuFigure::kRemappedPending] = pending;
    now[GpuFigure::kRemappedFailed] = failed;
  }
  now[GpuFigure::kNvlinkBytes] = nvlink_bytes();
  return sample;
}

std::optional<int64_t> NvmlGpu::wait_for_xid(std::chrono::milliseconds time) {
  EventData event{};
  const int code =
      events_ ? code_of("nvmlEventSetWait_v2", events_, &event, static_cast<unsigned>(time.count()))
              : kFunctionNotFound;
  if (code == kSuccess) {
    return static_cast<int64_t>(event.data);
  }
  if (code != kTimeout) {  // a GPU that is lost does not wait
    std::this_thread::sleep_for(time);
  }
  return std::nullopt;
}

}  // namespace tandem
