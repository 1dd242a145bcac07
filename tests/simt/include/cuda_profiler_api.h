// A profiler of the emulated GPU notes when it would listen, in the file TANDEM_SIMT_GRAPHS.
#pragma once

#include <cuda_runtime.h>

cudaError_t cudaProfilerStart();
cudaError_t cudaProfilerStop();
