#include "src/data/utf8.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tandem {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct LeadByte {
  int trailing;       // bytes that follow
  uint8_t low, high;  // allowed range of the first of them (Unicode 15, table 3-7)
};

// trailing is 0 for a byte that cannot begin a character of several bytes.
LeadByte lead_byte(uint8_t byte) {
  const bool is_lead = byte >= 0xC2 && byte <= 0xF4;
  const int trailing = is_lead ? 1 + (byte >= 0xE0) + (byte >= 0xF0) : 0;
  const uint8_t low = byte == 0xE0 ? 0xA0 : (byte == 0xF0 ? 0x90 : 0x80);
  const uint8_t high = byte == 0xED ? 0x9F : (byte == 0xF4 ? 0x8F : 0xBF);
  return {trailing, low, high};
}

bool is_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// Skips plain ASCII from `at` on, eight bytes at a time, and returns where it ends.
size_t skip_ascii(std::string_view text, size_t at) {
  while (at + 8 <= text.size()) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080u) != 0) {
      break;
    }
    at += 8;
  }
  while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) {
    ++at;
  }
  return at;
}

}  // namespace

Utf8Step read_utf8(std::string_view text, size_t at) {
  const auto first = static_cast<uint8_t>(text[at]);
  if (first < 0x80) {
    return {first, 1, false};
  }
  const LeadByte lead = lead_byte(first);
  if (lead.trailing == 0) {
    return {-1, 1, false};
  }
  int32_t code_point = first & (0x3F >> lead.trailing);
  for (int i = 1; i <= lead.trailing; ++i) {
    if (at + static_cast<size_t>(i) >= text.size()) {
      return {-1, i, true};
    }
    const auto byte = static_cast<uint8_t>(text[at + static_cast<size_t>(i)]);
    if (byte < (i == 1 ? lead.low : 0x80) || byte > (i == 1 ? lead.high : 0xBF)) {
      return {-1, i, false};
    }
    code_point = (code_point << 6) | (byte & 0x3F);
  }
  return {code_point, lead.trailing + 1, false};
}

void append_utf8(int32_t code_point, std::string* out) {
  constexpr int32_t kLead[] = {0x00, 0xC0, 0xE0, 0xF0};  // by the number of bytes that follow
  const int trailing = (code_point >= 0x80) + (code_point >= 0x800) + (code_point >= 0x10000);
  out->push_back(static_cast<char>(kLead[trailing] | (code_point >> (6 * trailing))));
  for (int shift = 6 * (trailing - 1); shift >= 0; shift -= 6) {
    out->push_back(static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)));
  }
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while ((at = skip_ascii(text, at)) < text.size()) {
    const Utf8Step step = read_utf8(text, at);
    if (step.code_point < 0) {
      break;
    }
    at += static_cast<size_t>(step.length);
  }
  return at;
}

int64_t repair_utf8(std::string* text) {
  const size_t valid = valid_utf8_prefix(*text);
  if (valid == text->size()) {
    return 0;
  }
  std::string repaired = text->substr(0, valid);
  repaired.reserve(text->size() + 16);
  int64_t broken = 0;
  for (size_t at = valid; at < text->size();) {
    const Utf8Step step = read_utf8(*text, at);
    const auto length = static_cast<size_t>(step.length);
    if (step.code_point < 0) {
      repaired += kReplacement;
      ++broken;
    } else {
      repaired.append(*text, at, length);
    }
    at += length;
  }
  text->swap(repaired);
  return broken;
}

int64_t count_characters(std::string_view text) {
  return std::ssize(text) - std::ranges::count_if(text, is_continuation);
}

size_t byte_of_character(std::string_view text, int64_t characters) {
  size_t at = 0;
  while (at < text.size() && (characters > 0 || is_continuation(text[at]))) {
    characters -= is_continuation(text[at]) ? 0 : 1;
    ++at;
  }
  return at;
}

std::string lower_case(std::string text) {
  for (char& letter : text) {
    letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  }
  return text;
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  // Only the last three bytes can belong to a character that is not complete.
  size_t end = held_.size();
  for (size_t back = 1; back <= 3 && back <= held_.size(); ++back) {
    const size_t at = held_.size() - back;
    if (!is_continuation(held_[at])) {
      if (read_utf8(held_, at).cut_short) {
        end = at;
      }
      break;
    }
  }
  std::string whole = held_.substr(0, end);
  held_.erase(0, end);
  broken_ += repair_utf8(&whole);
  return whole;
}

std::string Utf8Stream::finish() {
  std::string rest = std::exchange(held_, {});
  broken_ += repair_utf8(&rest);
  return rest;
}

}  // namespace tandem
