// What ranks hold of a model that is cut, put together.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/autograd/parameter.h"
#include "tests/support/harness.h"

namespace tandem::testing {

// Logical tensors by name, put together from what the ranks of a group say of each element.
using Tensors = std::map<std::string, std::vector<double>>;

inline void put(Tensors& tensors, const Parameter& parameter, int64_t first, const Tensor& data) {
  const std::vector<double> values = values_of(data);
  visit_pieces(parameter, {first, first + data.elements()},
               [&](const Piece& piece, Range here, int64_t begin) {
                 std::vector<double>& all = tensors[piece.name];
                 all.resize(static_cast<size_t>(piece.slice.whole().elements()));
                 for (int64_t i = 0; i < here.count(); ++i) {
                   all[static_cast<size_t>(piece.slice.run_at(here.begin + i).begin)] +=
                       values[static_cast<size_t>(begin + i)];
                 }
               });
}

}  // namespace tandem::testing
