// The class index that means "no target here". Its loss and gradient are zero, and it does not
// count as a target.
#pragma once

#include <cstdint>

namespace tandem {

inline constexpr int32_t kIgnoreTarget = -1;

}  // namespace tandem
