// Where tensors live and kernels run.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem {

enum class Device : uint8_t { kCpu, kCuda };

std::string_view name_of(Device device);  // "cpu" or "cuda"
std::vector<Device> available_devices();  // the CPU always; CUDA when built in and a GPU is present

// OpenMP threads of this process's CPU kernels.
void set_cpu_threads(int threads);
int cpu_threads();

// Uses `threads`; 0 means an equal share of the cores that this process may run on, for `processes`
// on this host.
void use_cpu_share(int64_t threads, int processes);

}  // namespace tandem
