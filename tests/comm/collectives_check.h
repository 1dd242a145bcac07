// Checks the contracts of Collectives and Control for any implementation: sums and moves of numbers
// that every rank can predict, and the bytes that are counted for them.
#pragma once

#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace tandem::testing {

// Collective among `ranks`, which are the ranks `members` of the job, all on one node. Tensors lie
// on `device`. Tries every collective in place and out of place, for several sizes and dtypes, and
// expects exact equality; i64 wraps around.
void check_collectives(const Ranks& ranks, const std::vector<int>& members, Device device);

// Collective among all ranks: the same for splits into halves, into odd and even ranks, into single
// ranks, and for a split of a split.
void check_splits(const Ranks& world, Device device);

// Element i of rank `rank` of the job. For f32 these are small integers, whose sums over ranks are
// exact; for i64 they are so large that sums wrap around.
int64_t number(DType dtype, int rank, int64_t i);
// Elements [first, first + n) of the sum over `ranks`, on `device`.
Tensor numbers(DType dtype, const std::vector<int>& ranks, int64_t first, int64_t n, Device device);
// A tensor whose bits are all one.
Tensor unset(DType dtype, int64_t n, Device device);
// Expects the same bits in both tensors.
void expect_same(const Tensor& tensor, const Tensor& expected, const std::string& what);

// Makes later work on `stream` wait for the work that the device's compute stream holds now.
void order_behind_compute(Stream& stream, Device device);

// Runs work() after the work of the device's compute stream, waits for it, and returns what was
// sent. `group`: Collectives, or a Group.
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
