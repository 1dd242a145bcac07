// Finds the places of each token in a batch, on a GPU. The gradient of an embedding sums over them.
#pragma once

#include "src/device/dispatch.h"

namespace tandem::kernels {

// The places of token v are order[starts[v]], ..., order[starts[v + 1] - 1], in ascending order.
struct TokenOrder {
  const int32_t* order;   // [count]
  const int32_t* starts;  // [vocab + 1]
};

inline constexpr int kOrderDigits = 256;  // values of a digit; also the threads of a block
inline constexpr int kOrderTile = 1024;   // tokens of a block

inline int64_t order_tiles(int64_t count) { return (count + kOrderTile - 1) / kOrderTile; }

// Workspace for order_tokens, in i32 elements.
inline int64_t token_order_workspace(int64_t count, int64_t vocab) {
  return 2 * count + order_tiles(count) * kOrderDigits + vocab + 1;
}

// tokens [count], all in [0, vocab); count is below 2^31. The result points into the workspace.
TokenOrder order_tokens(Cuda device, const int32_t* tokens, int64_t count, int64_t vocab,
                        int32_t* workspace);

}  // namespace tandem::kernels
