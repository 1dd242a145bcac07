// Shared memory of the running block: checks of accesses, bank conflicts, and asynchronous copies.
//
// Shared memory has 32 banks of 4 bytes. A warp's access is served in passes: of 32 lanes for up to
// 4 bytes a lane, of 16 for 8 bytes, of 8 for 16 bytes. Each further word of a bank costs another
// pass, which is counted as a conflict. A lane's n-th access at a place in the code belongs to the
// n-th access of the other lanes there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/simt/device_functions.h"

namespace simt {

// Fails unless these bytes are aligned to their size and lie in shared memory of the running block.
void access_shared(const void* pointer, size_t bytes, Place place);

// Conflicts of `lanes` lanes that access `bytes` bytes each at the same time; address 0: none.
int bank_conflicts(const uintptr_t* addresses, int lanes, size_t bytes);

// See src/device/ptx.cuh.
void copy_async(void* to, const void* from, size_t bytes, bool valid, Place place);
void copies_commit();
void copies_wait(int pending);

}  // namespace simt
