// A box-shaped piece of a logical tensor, row-major: what one rank or one file holds of it. A whole
// tensor is a slice of itself. Ranks that shard a matrix hold slices of its rows or columns.
#pragma once

#include "src/core/range.h"
#include "src/core/shape.h"

namespace tandem {

class Slice {
 public:
  // All of a tensor.
  Slice(const Shape& whole = Shape());  // NOLINT(google-explicit-constructor)
  // The elements [start[i], start[i] + extent[i]) along each axis i. Throws Error(kInternal) when
  // they are not all inside `whole`.
  Slice(const Shape& whole, const Shape& start, const Shape& extent);

  const Shape& whole() const { return whole_; }
  const Shape& start() const { return start_; }
  const Shape& extent() const { return extent_; }
  int64_t elements() const { return extent_.elements(); }
  bool operator==(const Slice&) const = default;

  bool overlaps(const Slice& other) const;  // a slice of the same tensor; empty: false
  // The elements of the logical tensor, from element `element` of the slice on, that are contiguous
  // both in the tensor and in the slice.
  Range run_at(int64_t element) const;

 private:
  Shape whole_, start_, extent_;
};

// One of `count` ranges of an axis, whose sizes differ by one element at most.
struct Cut {
  int index = 0, count = 1;
  Range of(int64_t size) const {
    const int64_t least = size / count, more = size % count;
    const int64_t begin = index * least + std::min<int64_t>(index, more);
    return {begin, begin + least + (index < more)};
  }
  // Returns this range of a whole tensor's axis as a slice.
  Slice of(const Shape& whole, int axis) const {
    const Range here = of(whole[axis]);
    return {whole, Slice(whole).start().with(axis, here.begin), whole.with(axis, here.count())};
  }
};

// Visits the elements of the logical tensor that are both in elements `of_a` of slice a and in
// elements `of_b` of slice b, in order. Calls visit(in_a, in_b, count) for each contiguous run of
// them; it begins at element in_a of slice a and element in_b of slice b.
template <class F>
void visit_common(const Slice& a, Range of_a, const Slice& b, Range of_b, F visit) {
  while (of_a.count() > 0 && of_b.count() > 0) {
    Range run_a = a.run_at(of_a.begin), run_b = b.run_at(of_b.begin);
    run_a.end = std::min(run_a.end, run_a.begin + of_a.count());
    run_b.end = std::min(run_b.end, run_b.begin + of_b.count());
    const Range common = intersection(run_a, run_b);
    if (common.count() > 0) {
      visit(of_a.begin + common.begin - run_a.begin, of_b.begin + common.begin - run_b.begin,
            common.count());
    }
    const int64_t done = std::min(run_a.end, run_b.end);  // in the logical tensor
    of_a.begin += std::max<int64_t>(0, done - run_a.begin);
    of_b.begin += std::max<int64_t>(0, done - run_b.begin);
  }
}

}  // namespace tandem
