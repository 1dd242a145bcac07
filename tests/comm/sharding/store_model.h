// Blocks of parameters without layers, for tests that drive the store by hand.
#pragma once

#include <deque>

#include "comm/sharding/param_store.h"

namespace tandem::testing {

struct StoreModel {
  std::deque<Parameter> parameters;
  std::vector<BlockParameters> blocks;

  StoreModel(std::initializer_list<std::initializer_list<Shape>> shapes) {
    for (const auto& block : shapes) {
      blocks.push_back({.name = str("block", blocks.size()), .parameters = {}});
      for (const Shape& shape : block) {
        parameters.push_back({.name = str("p", parameters.size()),
                              .shape = shape,
                              .init = Initializer::normal(1),
                              .decay = shape.rank() > 1});
        blocks.back().parameters.push_back(&parameters.back());
      }
    }
  }
};

inline StoreModel small_model() {
  return {{{40, 5}, {5}}, {{3, 33}, {33}, {7}}, {{100, 11}, {11}, {3}}, {{9, 9}}};
}

}  // namespace tandem::testing
