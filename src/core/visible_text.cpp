#include "src/core/visible_text.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "src/core/formatted.h"

namespace tandem {

size_t begin_of_character(std::string_view text, size_t at) {
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80) {
    --at;
  }
  return at;
}

std::string shortened(const std::string& text, size_t most, size_t end) {
  constexpr std::string_view kGap = "...";
  if (text.size() <= most) {
    return text;
  }
  const size_t last = begin_of_character(text, text.size() - end);
  const size_t first = begin_of_character(text, most - kGap.size() - (text.size() - last));
  return text.substr(0, first).append(kGap).append(text, last);
}

std::string visible(const std::string& text, std::string_view kept) {
  std::string shown;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) >= ' ' && c != 127) || kept.find(c) != kept.npos) {
      shown += c;
    } else {
      shown += formatted("\\x%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
  return shown;
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%";
  if (text.find_first_not_of(kPlain) == std::string::npos) {
    return text;
  }
  std::string word = "'";
  for (const char letter : text) {
    word += letter == '\'' ? "'\\''" : std::string(1, letter);
  }
  return word + "'";
}

void show(const char* format, ...) {
  char* text = nullptr;
  va_list arguments;
  va_start(arguments, format);
  const int length = ::vasprintf(&text, format, arguments);
  va_end(arguments);
  if (length >= 0) {
    const std::string shown = visible({text, static_cast<size_t>(length)}, "\n");
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::free(text);
  }
}

void complain(const std::string& message) {
  constexpr size_t kMostInLine = 400, kEndOfLine = 100;
  std::istringstream lines("tandem: " + visible(message, "\n"));
  std::string shown;
  for (std::string line; std::getline(lines, line);) {
    shown += shortened(line, kMostInLine, kEndOfLine) + "\n";
  }
  std::fwrite(shown.data(), 1, shown.size(), stderr);
  std::fflush(stderr);
}

}  // namespace tandem
