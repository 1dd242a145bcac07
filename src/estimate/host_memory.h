// How much memory the system would still give to this process.
#pragma once

#include <cstdint>
#include <string>

namespace tandem {

// Bytes: what the kernel counts as available, with free swap, and at most what the memory limits of
// the process's control groups (v1 or v2, and those above them) leave, without their page cache.
// INT64_MAX where the system does not say. `root`: what stands before /proc and /sys, for tests.
int64_t available_host_memory(const std::string& root = "");

// Bytes of address space that RLIMIT_AS leaves to this process; INT64_MAX without a limit.
int64_t available_address_space();

}  // namespace tandem
