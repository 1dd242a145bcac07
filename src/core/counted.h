// Numbers with their nouns.
#pragma once

#include <cstdint>
#include <string>

namespace tandem {

// "1 rank", "0 ranks"; "2 classes" with a `plural` that is not the noun with an s.
inline std::string counted(int64_t count, const std::string& noun, const std::string& plural = "") {
  return std::to_string(count) + " " + (count == 1 ? noun : plural.empty() ? noun + "s" : plural);
}

}  // namespace tandem
