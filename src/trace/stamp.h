// The clock of a device, stored in the order of its stream.
#pragma once

#include <cstdint>

#include "src/device/dispatch.h"

namespace tandem {

// *to = nanoseconds by the device's clock, which is that of no other device. A GPU's clock may go
// forward in steps of up to a microsecond.
void stamp(Cpu, int64_t* to);
void stamp(Cuda, int64_t* to);

}  // namespace tandem
