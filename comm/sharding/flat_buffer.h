// A flat array over the ranks of a group, and its placement: which elements each rank holds. ZeRO
// (Rajbhandari et al. 2020, "ZeRO: Memory optimizations toward training trillion parameter models")
// is a table of placements, kZero. Only redistribute() chooses a collective.
#pragma once

#include <array>

#include "comm/sharding/group.h"

namespace tandem {

enum class Placement : uint8_t {
  kReplicated,  // every rank has the whole array, the same bits
  kPartial,     // every rank has an addend; the array is their sum
  kSharded,     // every rank has one of parts() equal shards (group.h)
};

struct FlatBuffer {
  Placement placement = Placement::kReplicated;
  Tensor data;  // flat: the whole array [n], or this rank's shard [n / parts]
};

// Collective, asynchronous on group.stream(): gives `to` the contents of `from`.
//   partial -> replicated     all_reduce; both are the same memory
//   partial -> sharded        reduce_scatter; afterwards the contents of `from` are undefined; `to`
//                             may be this rank's shard of it, and is f32 if `from` is bf16
//   sharded -> replicated     all_gather; `from` may be this rank's shard of `to`
// Anything else is a programming error. Sums: f32, bf16, i64 (group.h); `eight_bits`, too.
void redistribute(const Group& group, const FlatBuffer& from, const FlatBuffer& to,
                  const EightBits& eight_bits = {});

// The placement of each buffer in each ZeRO stage. `gradients`: between micro-steps; the sums that
// the optimizer reads are placed as `state`, like its own state and the master weights.
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
