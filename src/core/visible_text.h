// Text of strangers in messages.
#pragma once

#include <string>

namespace tandem {

// The text with control characters other than `kept` as \xHH: they could forge lines of a message,
// or command a terminal.
std::string visible(const std::string& text, char kept = '\0');

}  // namespace tandem
