// Runs one block: its threads are fibers of one OS thread, which hand over at barriers, shuffles
// and votes. One block runs at a time in the process.
#pragma once

#include <cstdint>
#include <functional>

#include "tests/simt/settings.h"

namespace simt {

// Calls `body` as each of the threads of blockDim, blockIdx. Throws what a thread throws.
void run_block(const std::function<void()>& body, Random& random);
bool in_thread();  // a thread of a block runs, now

}  // namespace simt
