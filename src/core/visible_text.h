// Text of strangers in messages.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// The text with the bytes of control characters, of ASCII and C1 alike, as \xHH, except those in
// `kept`: they could forge lines of a message, or command a terminal.
std::string visible(const std::string& text, std::string_view kept = "");

// The last place up to `at` where a character of UTF-8 begins, or the end of the text.
size_t begin_of_character(std::string_view text, size_t at);

// Returns a text of at most `most` bytes as it is. A longer one becomes its begin, "..." and its
// last `end` bytes, together at most `most`. No character of UTF-8 is cut in two.
std::string shortened(const std::string& text, size_t most, size_t end = 0);

// The text as one word of a shell.
std::string shell_word(const std::string& text);

// Writes to standard output as printf() does, with control characters other than line breaks
// visible. For all text that may have come from a file.
[[gnu::format(printf, 1, 2)]] void show(const char* format, ...);

// Writes "tandem: MESSAGE" to standard error, whole also when several ranks write at once. It is
// one line, unless line breaks are `kept`. A line has at most 400 characters: of a longer one the
// middle is left out.
void complain(const std::string& message, std::string_view kept = "");

}  // namespace tandem
