// Runs one block. Its threads are fibers of one OS thread, which switch at barriers, shuffles and
// votes. The process runs one block at a time.
#pragma once

#include <cstdint>
#include <functional>

#include "tests/simt/settings.h"

namespace simt {

// Calls `body` as each thread of the block of blockDim and blockIdx. Throws what a thread throws.
void run_block(const std::function<void()>& body, Random& random);
bool in_thread();  // whether a thread of a block runs now

}  // namespace simt
