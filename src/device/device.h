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

// Sets the threads of CPU kernels to `threads`. 0: to an equal share of the cores that this process
// may run on, when `processes` processes run on this host.
void use_cpu_share(int64_t threads, int processes);

// Call first in main(). Two libraries read environment variables before main(). Where the user has
// not set these, this function sets them and starts the program again, once:
// - GOMP_SPINCOUNT: waiting OpenMP threads of libgomp sleep after some 50 microseconds. By default
//   they spin for milliseconds, which makes a busy machine five to ten times slower. Not set when
//   the user has set OMP_WAIT_POLICY.
// - OPENBLAS_NUM_THREADS: 1, because Tandem splits a matrix product over its own threads. Each
//   thread of OpenBLAS would request 128 MiB at start, and wait forever where memory is limited.
void choose_library_settings(char** argv);

}  // namespace tandem
