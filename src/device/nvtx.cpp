#include <nvtx3/nvToolsExt.h>

#include "src/device/profiler_range.h"

namespace tandem::nvtx {

void push(const char* name) { nvtxRangePushA(name); }
void pop() { nvtxRangePop(); }

}  // namespace tandem::nvtx
