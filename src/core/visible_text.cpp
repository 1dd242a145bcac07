#include "src/core/visible_text.h"

#include <array>
#include <cstdio>

namespace tandem {

std::string visible(const std::string& text, char kept) {
  std::string shown;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) >= ' ' && c != 127) || c == kept) {
      shown += c;
    } else {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\x%02X", static_cast<unsigned>(c));
      shown += code.data();
    }
  }
  return shown;
}

}  // namespace tandem
