// The contracts of Collectives and Control, for whatever carries them: sums and moves of numbers
// that every rank can predict, and what is counted for them.
#pragma once

#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace tandem::testing {

// Collective among `ranks`, which are the ranks `members` of the job, all on one node; tensors lie
// on `device`. Every collective in place and apart, for several sizes and dtypes, with equality;
// i64 wraps around.
void check_collectives(const Ranks& ranks, const std::vector<int>& members, Device device);

// Collective among all ranks: the same for splits into halves, into odd and even
// ranks, and into single ranks, and for a split of a split.
void check_splits(const Ranks& world, Device device);

// Numbers of rank `rank` of the job, and tensors of them. As f32 small integers, whose sums over
// ranks are exact; as i64 so large that sums wrap around.
int64_t number(DType dtype, int rank, int64_t i);
// Elements [first, first + n) of the sum over `ranks`, on `device`.
Tensor numbers(DType dtype, const std::vector<int>& ranks, int64_t first, int64_t n, Device device);
// All bits one.
Tensor unset(DType dtype, int64_t n, Device device);
// The tensor has the same bits as `expected`.
void expect_same(const Tensor& tensor, const Tensor& expected, const std::string& what);

// Later work on `stream` comes after what the device's compute stream holds.
void order_behind_compute(Stream& stream, Device device);

// Runs work() behind the device's compute stream, waits for it, and returns what was sent.
// `group`: Collectives, or a Hierarchy.
template <class C, class F>
WireCount sent(C& group, Device device, F work) {
  group.wait(group.stream().record());
  const WireCount before = group.wire();
  order_behind_compute(group.stream(), device);
  work();
  group.wait(group.stream().record());
  return group.wire() - before;
}

}  // namespace tandem::testing
