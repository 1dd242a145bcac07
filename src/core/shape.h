// The sizes of a contiguous, row-major tensor.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace tandem {

class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;  // rank 0: one element
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(
      std::span<const int64_t> sizes);  // sizes are not negative, at most kMaxRank of them

  int rank() const { return rank_; }
  int64_t operator[](int axis) const;  // a negative axis counts from the end
  int64_t elements() const;
  Shape with(int axis, int64_t size) const;  // with another size of one axis
  std::span<const int64_t> sizes() const { return {sizes_.data(), static_cast<size_t>(rank_)}; }
  bool operator==(const Shape& other) const = default;
  std::string text() const;  // "[2, 3]"

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace tandem
