// The form in which files of byte-level BPE write bytes: each byte is one printable character.
// Printable Latin-1 bytes stand for themselves, the other bytes are U+0100 and up (bytes_to_unicode
// in OpenAI's encoder.py); so a space is written as "Ġ".
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem {

std::string printed_form(std::string_view bytes);

// Nothing when a character is not in the alphabet.
std::optional<std::string> bytes_of_printed(std::string_view printed);

}  // namespace tandem
