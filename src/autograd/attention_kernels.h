// Which kernels compute attention.
#pragma once

#include <cstdint>

namespace tandem {

enum class AttentionKernels : uint8_t { kAuto, kOwn, kCudnn };

}  // namespace tandem
