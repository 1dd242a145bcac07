#include "src/core/visible_text.h"

#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "src/core/formatted.h"

namespace tandem {

namespace {

struct Character {
  unsigned value;
  size_t bytes;
};

// The character of UTF-8 with which a text begins, or its first byte where that begins none.
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const auto bytes = static_cast<size_t>(std::countl_one(lead));
  if (bytes < 2 || bytes > 4 || bytes > text.size()) {
    return {lead, 1};
  }
  unsigned value = lead & (0x7FU >> bytes);
  for (const char c : text.substr(1, bytes - 1)) {
    if ((static_cast<unsigned char>(c) & 0xC0U) != 0x80) {
      return {lead, 1};
    }
    value = value << 6 | (static_cast<unsigned char>(c) & 0x3FU);
  }
  return {value, bytes};
}

}  // namespace

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
  for (std::string_view rest = text; !rest.empty();) {
    const auto [value, bytes] = first_character(rest);
    const bool is_control = value < ' ' || (value >= 0x7F && value < 0xA0);
    for (const char c : rest.substr(0, bytes)) {
      shown += is_control && kept.find(c) == kept.npos
                   ? formatted("\\x%02X", static_cast<unsigned>(static_cast<unsigned char>(c)))
                   : std::string(1, c);
    }
    rest.remove_prefix(bytes);
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

void complain(const std::string& message, std::string_view kept) {
  constexpr size_t kMostInLine = 400, kEndOfLine = 100;
  std::istringstream lines("tandem: " + visible(message, kept));
  std::string shown;
  for (std::string line; std::getline(lines, line);) {
    shown += shortened(line, kMostInLine, kEndOfLine) + "\n";
  }
  std::fwrite(shown.data(), 1, shown.size(), stderr);
  std::fflush(stderr);
}

}  // namespace tandem
