// UTF-8: reading code points, repairing broken text, and counting characters.
//
// Responsible for one rule everywhere: a broken sequence becomes U+FFFD exactly as Python's
// bytes.decode("utf-8", errors="replace") does it, that is one U+FFFD for each maximal subpart
// (Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

// One step of reading UTF-8.
struct Utf8Step {
  int32_t code_point;  // -1 when the bytes are broken
  int length;          // bytes read, at least 1; of a broken sequence, its maximal subpart
  bool cut_short;      // broken only because the text ends inside a character
};

// Reads the character that begins at `at` (at < text.size()).
Utf8Step read_utf8(std::string_view text, size_t at);

// Appends the UTF-8 form of a code point.
void append_utf8(int32_t code_point, std::string* out);

// Number of bytes at the beginning of `text` that are valid UTF-8.
size_t valid_utf8_prefix(std::string_view text);

// Replaces each broken sequence by U+FFFD in place, and returns how many there were.
int64_t repair_utf8(std::string* text);

// Number of code points of valid UTF-8.
int64_t count_characters(std::string_view text);

// Byte position of the character number `characters` of valid UTF-8 (text.size() for the end).
size_t byte_of_character(std::string_view text, int64_t characters);

// With a to z for A to Z; all other characters stay.
std::string lower_case(std::string text);

// Joins pieces of text that may end in the middle of a character. What push() returns is always
// whole characters; the rest is held back until it is complete. Broken sequences become U+FFFD.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);

  // What is still held back at the end (U+FFFD, or nothing).
  std::string finish();

  int64_t broken() const { return broken_; }  // sequences that became U+FFFD

 private:
  std::string held_;
  int64_t broken_ = 0;
};

}  // namespace tandem
