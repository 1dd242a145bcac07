#include "src/device/device.h"

#include <omp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "src/device/cuda.h"
#include "src/device/dispatch.h"

namespace tandem {

std::string_view name_of(Device device) { return device == Device::kCpu ? "cpu" : "cuda"; }

std::vector<Device> available_devices() {
  if constexpr (kHasCuda) {
    if (cuda::device_count() > 0) {
      return {Device::kCpu, Device::kCuda};
    }
  }
  return {Device::kCpu};
}

std::string gpu_address(Device device) {
  if constexpr (kHasCuda) {
    if (device == Device::kCuda) {
      return cuda::pci_address();
    }
  }
  return {};
}

void set_cpu_threads(int threads) { omp_set_num_threads(threads); }

int cpu_threads() { return omp_get_max_threads(); }

void use_cpu_share(int64_t threads, int processes) {
  cpu_set_t allowed;
  const int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  set_cpu_threads(threads > 0 ? static_cast<int>(threads) : std::max(1, cores / processes));
}

void choose_openmp_settings(char** argv) {
  if (!std::getenv("OMP_WAIT_POLICY") && !std::getenv("GOMP_SPINCOUNT") &&
      setenv("GOMP_SPINCOUNT", "1000", 0) == 0) {
    execv("/proc/self/exe", argv);  // if this fails, the process continues as it is
  }
  prctl(PR_SET_NAME, program_invocation_short_name);  // ps and top: the restart made it "exe"
}

}  // namespace tandem
