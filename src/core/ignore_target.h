// The class index that stands for "no target here": its loss and gradient are zero, and it does not
// count.
#pragma once

#include <cstdint>

namespace tandem {

inline constexpr int32_t kIgnoreTarget = -1;

}  // namespace tandem
