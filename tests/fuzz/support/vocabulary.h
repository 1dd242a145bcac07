// A small vocabulary of GPT-2's kind, in the two files of OpenAI's format.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "src/data/utf8.h"
#include "tests/fuzz/support/fuzz.h"

namespace tandem::fuzz {

// Each byte as the printable character that stands for it in these files.
inline std::string printed(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const auto code = static_cast<uint8_t>(byte);
    int32_t shifted = 256;  // of the first byte that is not printable
    for (int32_t other = 0; other < code; ++other) {
      const bool shows = (other > 0x20 && other < 0x7F) || (other > 0xA0 && other != 0xAD);
      shifted += shows ? 0 : 1;
    }
    const bool shows = (code > 0x20 && code < 0x7F) || (code > 0xA0 && code != 0xAD);
    append_utf8(shows ? code : shifted, &text);
  }
  return text;
}

// encoder.json with all bytes, the end of text and `pieces`.
inline std::string encoder_json(const std::vector<std::string>& pieces) {
  nlohmann::json ids;
  for (int byte = 0; byte < 256; ++byte) {
    ids[printed(std::string(1, static_cast<char>(byte)))] = byte;
  }
  ids["<|endoftext|>"] = 256;
  for (const std::string& piece : pieces) {
    ids[printed(piece)] = ids.size();
  }
  return ids.dump();
}

inline void write_vocabulary(const std::vector<std::string>& pieces, const std::string& merges) {
  folder().write("encoder.json", encoder_json(pieces));
  folder().write("vocab.bpe", "#version: 0.2\n" + merges);
}

}  // namespace tandem::fuzz
