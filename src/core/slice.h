// What of a logical tensor is in one place: a box of it, row-major. A tensor that is whole is a
// slice of itself; ranks that divide a matrix between them have its rows or its columns.
#pragma once

#include "src/core/range.h"
#include "src/core/shape.h"

namespace tandem {

class Slice {
 public:
  // All of a tensor.
  Slice(const Shape& whole = Shape());  // NOLINT(google-explicit-constructor)
  // The elements from start[i] on, extent[i] of them, along each axis. Throws Error(kInternal) when
  // they are not all in `whole`.
  Slice(const Shape& whole, const Shape& start, const Shape& extent);

  const Shape& whole() const { return whole_; }
  const Shape& start() const { return start_; }
  const Shape& extent() const { return extent_; }
  int64_t elements() const { return extent_.elements(); }
  bool operator==(const Slice&) const = default;

  bool overlaps(const Slice& other) const;  // of the same tensor; an empty one overlaps none
  // Where element `element` of the slice is in the logical tensor, and up to where the elements
  // after it follow in both.
  Range run_at(int64_t element) const;

 private:
  Shape whole_, start_, extent_;
};

// Calls visit(in_a, in_b, count) for each run of elements of the logical tensor that is both in
// elements `of_a` of slice a and in elements `of_b` of slice b, in order.
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
    const int64_t done = std::min(run_a.end, run_b.end);  // of the logical tensor
    of_a.begin += std::max<int64_t>(0, done - run_a.begin);
    of_b.begin += std::max<int64_t>(0, done - run_b.begin);
  }
}

}  // namespace tandem
