// Where tensors live and kernels run.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem {

enum class Device : uint8_t { kCpu, kCuda };

std::string_view name_of(Device device);  // "cpu" or "cuda"
std::vector<Device> available_devices();  // the CPU always; CUDA when built in and a GPU is present

// Number of OpenMP threads used by CPU kernels of this process; 0 chooses all cores it may run on.
void set_cpu_threads(int threads);
int cpu_threads();

}  // namespace tandem
