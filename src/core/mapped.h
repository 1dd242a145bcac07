// Lists and sums of what a function makes of each element of a range. The function may be a pointer
// to a member.
#pragma once

#include <functional>
#include <ranges>
#include <vector>

namespace tandem {

template <class Range, class F>
using MappedTo =
    std::remove_cvref_t<std::invoke_result_t<F&, std::ranges::range_reference_t<Range>>>;

// f(element) for each element of `range`, in order.
template <class Range, class F = std::identity>
auto mapped(Range&& range, F f = {}) {
  std::vector<MappedTo<Range, F>> all;
  for (auto&& element : range) {
    all.push_back(std::invoke(f, std::forward<decltype(element)>(element)));
  }
  return all;
}

// The sum of f(element), added in order.
template <class Range, class F>
auto sum_of(Range&& range, F f) {
  MappedTo<Range, F> sum = 0;
  for (auto&& element : range) {
    sum += std::invoke(f, std::forward<decltype(element)>(element));
  }
  return sum;
}

}  // namespace tandem
