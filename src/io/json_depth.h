// How deeply JSON is nested, before it is read. A callback of nlohmann's parser could tell, but
// with one, reading n objects of a list takes n^2 steps.
#pragma once

#include <algorithm>
#include <string_view>

namespace tandem {

// How many objects and lists lie in each other. For a text that is no JSON it is any number.
inline int json_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      in_text = !in_text;
    } else if (!in_text && (text[i] == '{' || text[i] == '[')) {
      deepest = std::max(deepest, ++depth);
    } else if (!in_text && (text[i] == '}' || text[i] == ']')) {
      --depth;
    }
  }
  return deepest;
}

}  // namespace tandem
