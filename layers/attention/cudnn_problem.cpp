#include "layers/attention/cudnn_attention.h"

namespace tandem::cudnn_attention {

namespace {

int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

std::string Problem::text() const {
  return str("attention of ", name_of(dtype), " ", Shape{batch, length, layout.row()}, " with ",
             layout.heads, " heads, ", layout.kv_heads, " key-value heads of width ", layout.width);
}

int64_t Problem::delta_bytes() const {
  return rounded_up(batch * layout.heads * length * size_of(DType::kF32), 256);
}

// The gradients of all scores, in tiles; with groups, the gradients of keys and values of each
// query head.
int64_t estimated_workspace_bytes(const Problem& problem, Pass pass) {
  if (pass == Pass::kForward) {
    return 0;
  }
  const auto& [heads, kv_heads, width] = problem.layout;
  const int64_t side = rounded_up(problem.length, 64);
  const int64_t elements = side * side + (heads == kv_heads ? 0 : 2 * problem.length * width);
  return problem.delta_bytes() + problem.batch * heads * elements * size_of(problem.dtype);
}

}  // namespace tandem::cudnn_attention
