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

// Call first in main(). Two libraries read their settings before main(), so where the user has not
// made a choice the process makes it and starts itself again, once:
// - OpenMP threads of libgomp spin for milliseconds when they wait for each other, which makes a
//   busy machine five to ten times slower. GOMP_SPINCOUNT: they sleep after some 50 microseconds.
//   OMP_WAIT_POLICY, too, is a choice.
// - OPENBLAS_NUM_THREADS: one, as a matrix product is cut over Tandem's own threads. OpenBLAS's
//   would each want 128 MiB at start, and where memory is limited wait for it for ever.
void choose_library_settings(char** argv);

}  // namespace tandem
