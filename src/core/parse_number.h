// Numbers that users write.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace tandem {

// Nothing unless the whole text is a number that T can hold.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && last == end ? std::optional(value) : std::nullopt;
}

}  // namespace tandem
