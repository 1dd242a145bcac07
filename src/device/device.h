// Where tensors live and kernels run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

enum class Device : uint8_t { kCpu, kCuda };

std::string_view name_of(Device device);  // "cpu" or "cuda"
std::vector<Device> available_devices();  // the CPU always; CUDA when built in and a GPU is present
// The PCI address of the GPU that this process uses, "0000:8a:00.0". Empty on a CPU and on the
// emulated GPU.
std::string gpu_address(Device device);

// OpenMP threads of this process's CPU kernels.
void set_cpu_threads(int threads);
int cpu_threads();

// Sets the threads of CPU kernels to `threads`. 0: to an equal share of the cores that this process
// may run on, when `processes` processes run on this host.
void use_cpu_share(int64_t threads, int processes);

// Call before the first thread starts. libgomp reads its environment before main(). Unless the user
// has set GOMP_SPINCOUNT or OMP_WAIT_POLICY, this function sets the first and starts the program
// again, once: waiting OpenMP threads then sleep after some 50 microseconds. By default they spin
// for milliseconds, which makes a busy machine five to ten times slower.
void choose_openmp_settings(char** argv);

}  // namespace tandem
