// The heads of an attention layer.
#pragma once

#include <compare>
#include <cstdint>

#include "src/core/host_device.h"

namespace tandem {

// How the last axis of a fused projection [B, T, (heads + 2 * kv_heads) * width] is divided: query
// heads, then key heads, then value heads. Query head h uses key-value head h / (heads / kv_heads).
struct HeadLayout {
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t width = 1;  // of one head, D
  TANDEM_HOST_DEVICE int64_t row() const { return (heads + 2 * kv_heads) * width; }
  TANDEM_HOST_DEVICE int64_t group() const { return heads / kv_heads; }
  auto operator<=>(const HeadLayout&) const = default;
};

}  // namespace tandem
