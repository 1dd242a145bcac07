// A flat array over the ranks, and how it rests there. ZeRO (Rajbhandari et al. 2020, "ZeRO: Memory
// optimizations toward training trillion parameter models") is a table of placements, kZero;
// redistribute() is the only place where a collective is chosen.
#pragma once

#include <array>

#include "comm/communicator.h"

namespace tandem {

enum class Placement : uint8_t {
  kReplicated,  // every rank has the whole array, the same bits
  kPartial,     // every rank has an addend of the whole array
  kSharded,     // rank r has part r of size() equal parts
};

struct FlatBuffer {
  Placement placement = Placement::kReplicated;
  Tensor data;  // flat: the whole array [n], or this rank's part [n / size]
};

// Collective, asynchronous on communicator.stream(): gives `to` the contents of `from`.
//   partial -> replicated     all_reduce; both are the same memory
//   partial -> sharded        reduce_scatter; `from` is scratch afterwards
//   sharded -> replicated     all_gather; `from` may be this rank's part of `to`
//   replicated -> sharded     a local copy of this rank's part, if it is not the same memory
// Anything else is a programming error. f32 or f64 where there is a sum.
void redistribute(Communicator& communicator, const FlatBuffer& from, const FlatBuffer& to);

// How the buffers rest in each ZeRO stage. Gradients: between micro-steps; what the optimizer reads
// rests as its state does.
struct Resting {
  Placement parameters, gradients, state;
};
inline constexpr std::array<Resting, 4> kZero = {{
    {Placement::kReplicated, Placement::kPartial, Placement::kReplicated},
    {Placement::kReplicated, Placement::kPartial, Placement::kSharded},
    {Placement::kReplicated, Placement::kSharded, Placement::kSharded},
    {Placement::kSharded, Placement::kSharded, Placement::kSharded},
}};

}  // namespace tandem
