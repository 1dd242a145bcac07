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

// Call first in main(). OpenMP threads of libgomp spin for milliseconds when they wait for each
// other, which makes a busy machine five to ten times slower; after this they sleep after some 50
// microseconds. The library reads its settings before main(), so the process starts itself again,
// once. A choice of the user (OMP_WAIT_POLICY, GOMP_SPINCOUNT) stands.
void use_short_openmp_waits(char** argv);

}  // namespace tandem
