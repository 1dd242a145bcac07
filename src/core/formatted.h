// Text with numbers in it.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace tandem {

// A text as printf writes it, at most 511 characters.
template <class... Args>
std::string formatted(const char* format, Args... args) {
  std::array<char, 512> text;
  std::snprintf(text.data(), text.size(), format, args...);
  return text.data();
}

// "1 rank", "0 ranks"; "2 classes" with a `plural` that is not the noun with an s.
inline std::string counted(int64_t count, const std::string& noun, const std::string& plural = "") {
  return std::to_string(count) + " " + (count == 1 ? noun : plural.empty() ? noun + "s" : plural);
}

}  // namespace tandem
