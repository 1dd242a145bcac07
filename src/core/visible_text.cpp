#include "src/core/visible_text.h"

#include "src/core/formatted.h"

namespace tandem {

std::string visible(const std::string& text, char kept) {
  std::string shown;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) >= ' ' && c != 127) || c == kept) {
      shown += c;
    } else {
      shown += formatted("\\x%02X", static_cast<unsigned>(c));
    }
  }
  return shown;
}

}  // namespace tandem
