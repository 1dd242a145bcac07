// Text with numbers in it, as printf writes them.
#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace tandem {

// At most 511 characters.
template <class... Args>
std::string formatted(const char* format, Args... args) {
  std::array<char, 512> text;
  std::snprintf(text.data(), text.size(), format, args...);
  return text.data();
}

}  // namespace tandem
