// Runs one block. Its threads are fibers of one OS thread, which switch at barriers, shuffles and
// votes. The process runs one block at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "tests/simt/device_functions.h"
#include "tests/simt/settings.h"

namespace simt {

// Calls `body` as each thread of the block of blockDim and blockIdx. Throws what a thread throws.
void run_block(const std::function<void()>& body, Random& random);
// The running thread's number in its block, and that of the block among all that ever ran.
int thread_number();
uint64_t block_number();
// Waits for the other lanes of the warp; all 32 must call it with the same name and place. Then
// `run` is called once with the arguments of lanes 0 to 31.
using WarpArguments = std::array<void*, 32>;
void warp_together(const char* name, void* argument, void (*run)(const WarpArguments&),
                   Place place);
bool in_thread();  // whether a thread of a block runs now

}  // namespace simt
