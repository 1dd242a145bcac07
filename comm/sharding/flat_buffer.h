// A flat array over the ranks of a group, and how it rests there. ZeRO (Rajbhandari et al. 2020,
// "ZeRO: Memory optimizations toward training trillion parameter models") is a table of placements,
// kZero; redistribute() is the only place where a collective is chosen.
#pragma once

#include <array>

#include "comm/hierarchy.h"

namespace tandem {

enum class Placement : uint8_t {
  kReplicated,  // every rank has the whole array, the same bits
  kPartial,     // every rank has an addend of the whole array
  kSharded,     // every rank has one of parts() equal parts (hierarchy.h)
};

struct FlatBuffer {
  Placement placement = Placement::kReplicated;
  Tensor data;  // flat: the whole array [n], or this rank's part [n / parts]
};

// Collective, asynchronous on group.stream(): gives `to` the contents of `from`.
//   partial -> replicated     all_reduce; both are the same memory
//   partial -> sharded        reduce_scatter; `from` is scratch afterwards; `to` may be this rank's
//                             part of it, and is f32 where `from` is bf16
//   sharded -> replicated     all_gather; `from` may be this rank's part of `to`
// Anything else is a programming error. Sums: f32, bf16, i64 (hierarchy.h).
void redistribute(const Hierarchy& group, const FlatBuffer& from, const FlatBuffer& to);

// How the buffers rest in each ZeRO stage. Gradients: between micro-steps; what the optimizer reads
// rests as its state and master weights do.
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
