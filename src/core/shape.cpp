#include "src/core/shape.h"

#include <ostream>

#include "src/core/error.h"
#include "src/core/mapped.h"

namespace tandem {

Shape::Shape(std::span<const int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
  require(rank_ <= kMaxRank, "Shape: too many axes");
  for (int i = 0; i < rank_; ++i) {
    require(sizes[i] >= 0, "Shape: negative size");
    sizes_[i] = sizes[i];
  }
}

int64_t Shape::operator[](int axis) const {
  const int index = axis < 0 ? rank_ + axis : axis;
  require(index >= 0 && index < rank_, "Shape: no axis ", axis, " in ", *this);
  return sizes_[index];
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (int64_t size : sizes()) {
    if (__builtin_mul_overflow(product, size, &product)) {
      fail(ExitCode::kConfig, *this, " has more than 2^63 elements; take smaller sizes");
    }
  }
  return product;
}

Shape Shape::with(int axis, int64_t size) const {
  std::vector<int64_t> sizes(sizes_.begin(), sizes_.begin() + rank_);
  sizes.at(static_cast<size_t>(axis < 0 ? axis + rank_ : axis)) = size;
  return Shape(sizes);
}

std::string Shape::text() const {
  return "[" + joined(mapped(sizes(), [](int64_t size) { return std::to_string(size); })) + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.text(); }

}  // namespace tandem
