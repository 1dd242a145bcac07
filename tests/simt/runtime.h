// Shared by the files that implement the runtime API.
#pragma once

#include <cuda_runtime.h>

namespace simt {

// Returns `error`, and remembers it for cudaGetLastError.
cudaError_t result(cudaError_t error, const char* call = __builtin_FUNCTION());
// Fails if a call returned an error that was not read since.
void fail_unread_error();
cudaError_t no_device();  // cudaSuccess when there is one

}  // namespace simt
