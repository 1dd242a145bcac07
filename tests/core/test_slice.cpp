#include <gtest/gtest.h>

#include <vector>

#include "src/core/error.h"
#include "src/core/slice.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

// The logical elements of a slice, axis by axis.
std::vector<int64_t> elements_of(const Slice& slice) {
  std::vector<int64_t> elements{0};
  for (int axis = 0; axis < slice.whole().rank(); ++axis) {
    std::vector<int64_t> next;
    for (const int64_t element : elements) {
      for (int64_t i = 0; i < slice.extent()[axis]; ++i) {
        next.push_back(element * slice.whole()[axis] + slice.start()[axis] + i);
      }
    }
    elements = std::move(next);
  }
  return elements;
}

const std::vector<Slice> kSlices = {Shape(),
                                    Shape{7},
                                    Slice({7}, {2}, {3}),
                                    Shape{3, 4, 5},
                                    Slice({3, 4, 5}, {1, 0, 0}, {2, 4, 5}),
                                    Slice({3, 4, 5}, {0, 1, 0}, {3, 2, 5}),
                                    Slice({3, 4, 5}, {0, 1, 2}, {3, 3, 2}),
                                    Slice({3, 4, 5}, {2, 3, 4}, {1, 1, 1}),
                                    Slice({3, 4, 5}, {0, 0, 3}, {1, 4, 2})};

TEST(Slice, RunsAreAsLongAsTheyCanBe) {
  for (const Slice& slice : kSlices) {
    const std::vector<int64_t> elements = elements_of(slice);
    ASSERT_EQ(static_cast<int64_t>(elements.size()), slice.elements());
    for (size_t i = 0; i < elements.size(); ++i) {
      size_t next = i + 1;
      while (next < elements.size() && elements[next] == elements[next - 1] + 1) {
        ++next;
      }
      const Range run = slice.run_at(static_cast<int64_t>(i));
      EXPECT_EQ(run.begin, elements[i]) << slice.extent() << " of " << slice.whole();
      // A row of a slice may happen to begin where the previous row ends.
      EXPECT_LE(run.end, elements[next - 1] + 1) << slice.extent() << " of " << slice.whole();
      EXPECT_GT(run.count(), 0);
    }
  }
  EXPECT_EQ(Slice(Shape{3, 4, 5}).run_at(7), (Range{7, 60}));
  EXPECT_EQ(Slice({3, 4, 5}, {1, 0, 0}, {2, 4, 5}).run_at(3), (Range{23, 60}));
  EXPECT_EQ(Slice({3, 4, 5}, {0, 1, 0}, {3, 2, 5}).run_at(10), (Range{25, 35}));
}

TEST(Slice, CommonElementsAreThoseOfBothInOrder) {
  for (const Slice& a : kSlices) {
    for (const Slice& b : kSlices) {
      if (a.whole() != b.whole()) {
        continue;
      }
      const std::vector<int64_t> in_a = elements_of(a), in_b = elements_of(b);
      for (const Range of_a : {Range{0, a.elements()}, Range{a.elements() / 3, a.elements() - 1}}) {
        const Range of_b{b.elements() / 4, b.elements()};
        std::vector<int64_t> expected, found;
        for (int64_t i = of_a.begin; i < of_a.end; ++i) {
          for (int64_t j = of_b.begin; j < of_b.end; ++j) {
            if (in_a[i] == in_b[j]) {
              expected.push_back(in_a[i]);
            }
          }
        }
        visit_common(a, of_a, b, of_b, [&](int64_t i, int64_t j, int64_t count) {
          for (int64_t k = 0; k < count; ++k) {
            ASSERT_LT(i + k, of_a.end);
            ASSERT_LT(j + k, of_b.end);
            EXPECT_EQ(in_a[i + k], in_b[j + k]);
            found.push_back(in_a[i + k]);
          }
        });
        EXPECT_EQ(found, expected);
      }
      std::vector<int64_t> both;
      std::ranges::set_intersection(in_a, in_b, std::back_inserter(both));
      EXPECT_EQ(a.overlaps(b), !both.empty());
    }
  }
}

TEST(Slice, OutsideOfItsTensorIsAnError) {
  EXPECT_THROW(Slice({3, 4}, {0, 2}, {3, 3}), Error);
  EXPECT_THROW(Slice({3, 4}, {0}, {3}), Error);
  EXPECT_THROW(Slice({3, 4}, {4, 0}, {0, 4}), Error);
}

// However a tensor is divided, each element gets the initial value that it has in the whole tensor,
// which is long enough for several threads.
TEST(Slice, ParametersStartByLogicalElements) {
  Parameter all{.name = "w", .shape = {160, 128}, .init = Initializer::normal(1)};
  all.value = Tensor::empty(test_memory(), all.shape, DType::kF32, MemoryClass::kParameters);
  initialize(all, 7);
  for (const Slice& slice :
       {Slice(all.shape, {3, 0}, {150, 128}), Slice(all.shape, {0, 2}, {160, 5})}) {
    Parameter part = all;
    part.shape = slice.extent();
    part.pieces = {{"w", slice}};
    part.value = Tensor::zeros(test_memory(), part.shape, DType::kF32, MemoryClass::kParameters);
    initialize(part, 7);
    for (int64_t i = 0; i < slice.elements(); ++i) {
      EXPECT_EQ(part.value.data<float>()[i], all.value.data<float>()[slice.run_at(i).begin]);
    }
  }
}

// A stack starts with the values that its pieces have as parameters of their own.
TEST(Slice, StacksStartAsTheirPieces) {
  const auto started = [](Parameter parameter) {
    parameter.init = Initializer::normal(1);
    parameter.value =
        Tensor::empty(test_memory(), parameter.shape, DType::kF32, MemoryClass::kParameters);
    initialize(parameter, 7);
    return values_of(parameter.value);
  };
  std::vector<double> one = started({.name = "a", .shape = {2, 3}});
  const std::vector<double> other = started({.name = "b", .shape = {4, 3}});
  one.insert(one.end(), other.begin(), other.end());
  const Parameter stack{
      .name = "ab", .shape = {6, 3}, .pieces = {{"a", Shape{2, 3}}, {"b", Shape{4, 3}}}};
  EXPECT_EQ(started(stack), one);

  std::string visited;
  visit_pieces(stack, {4, 11}, [&](const Piece& piece, Range in_slice, int64_t begin) {
    visited += str(piece.name, " ", in_slice.begin, "-", in_slice.end, " at ", begin, ", ");
  });
  EXPECT_EQ(visited, "a 4-6 at 0, b 0-5 at 2, ");
  visit_pieces(stack, {6, 6}, [](const Piece&, Range, int64_t) { FAIL() << "nothing is there"; });
}

}  // namespace
}  // namespace tandem::testing
