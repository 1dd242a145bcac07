#include "src/data/bpe/byte_alphabet.h"

#include <array>

#include "src/data/utf8.h"

namespace tandem {
namespace {

struct Alphabet {
  std::array<int32_t, 256> character_of{};  // by byte
  std::array<int16_t, 512> byte_of{};       // by character; -1: none

  constexpr Alphabet() {
    byte_of.fill(-1);
    int32_t next = 256;
    for (int32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                             (byte >= 0xAE && byte <= 0xFF);
      const int32_t character = printable ? byte : next++;
      character_of[byte] = character;
      byte_of[character] = static_cast<int16_t>(byte);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

std::string printed_form(std::string_view bytes) {
  std::string printed;
  for (const char byte : bytes) {
    append_utf8(kAlphabet.character_of[static_cast<uint8_t>(byte)], &printed);
  }
  return printed;
}

std::optional<std::string> bytes_of_printed(std::string_view printed) {
  std::string bytes;
  for (size_t at = 0; at < printed.size();) {
    const Utf8Step step = read_utf8(printed, at);
    const bool is_small = step.code_point >= 0 && step.code_point < 512;
    const int16_t byte = is_small ? kAlphabet.byte_of[step.code_point] : static_cast<int16_t>(-1);
    if (byte < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(byte));
    at += static_cast<size_t>(step.length);
  }
  return bytes;
}

}  // namespace tandem
