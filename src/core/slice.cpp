#include "src/core/slice.h"

#include <vector>

#include "src/core/error.h"

namespace tandem {

Slice::Slice(const Shape& whole)
    : whole_(whole),
      start_(std::vector<int64_t>(static_cast<size_t>(whole.rank()), 0)),
      extent_(whole) {}

Slice::Slice(const Shape& whole, const Shape& start, const Shape& extent)
    : whole_(whole), start_(start), extent_(extent) {
  bool inside = start.rank() == whole.rank() && extent.rank() == whole.rank();
  for (int axis = 0; inside && axis < whole.rank(); ++axis) {
    inside = extent[axis] <= whole[axis] && start[axis] <= whole[axis] - extent[axis];
  }
  require(inside, "Slice: ", extent, " from ", start, " of ", whole);
}

bool Slice::overlaps(const Slice& other) const {
  bool overlap = true;
  for (int axis = 0; axis < whole_.rank(); ++axis) {
    const Range here{start_[axis], start_[axis] + extent_[axis]};
    const Range there{other.start_[axis], other.start_[axis] + other.extent_[axis]};
    overlap = overlap && intersection(here, there).count() > 0;
  }
  return overlap;
}

Range Slice::run_at(int64_t element) const {
  int64_t begin = 0, stride = 1, run = 1, left = element;
  bool together = true;  // neighbours in the slice are neighbours in the tensor
  for (int axis = whole_.rank() - 1; axis >= 0; --axis) {
    begin += (start_[axis] + left % extent_[axis]) * stride;
    left /= extent_[axis];
    run *= together ? extent_[axis] : 1;
    together = together && extent_[axis] == whole_[axis];
    stride *= whole_[axis];
  }
  return {begin, begin + run - element % run};
}

}  // namespace tandem
