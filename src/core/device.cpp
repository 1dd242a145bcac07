#include "src/core/device.h"

#include <omp.h>
#include <sched.h>

namespace tandem {

std::string_view name_of(Device device) { return device == Device::kCpu ? "cpu" : "cuda"; }

std::vector<Device> available_devices() { return {Device::kCpu}; }

void set_cpu_threads(int threads) {
  if (threads <= 0) {
    cpu_set_t allowed;
    threads = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  }
  omp_set_num_threads(threads);
}

int cpu_threads() { return omp_get_max_threads(); }

}  // namespace tandem
