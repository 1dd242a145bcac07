// Reading and repairing UTF-8: src/data/utf8.cpp
#include "src/data/utf8.h"
#include "tests/fuzz/support/fuzz.h"

using namespace tandem;
using fuzz::check;

// The first byte is the length of the pieces in which the rest is read as a stream.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string text = fuzz::text_of(data + 1, size - 1);
  std::string repaired = text;
  const int64_t broken = repair_utf8(&repaired);
  check((broken == 0) == (valid_utf8_prefix(text) == text.size()), "valid text needs no repair");
  check(broken > 0 || repaired == text, "valid text stays as it is");
  check(valid_utf8_prefix(repaired) == repaired.size(), "repaired text is valid");

  std::string rebuilt;
  int64_t characters = 0;
  for (size_t at = 0; at < repaired.size(); ++characters) {
    check(byte_of_character(repaired, characters) == at, "characters begin where they are counted");
    const Utf8Step step = read_utf8(repaired, at);
    append_utf8(step.code_point, &rebuilt);
    at += static_cast<size_t>(step.length);
    if (characters == 64) {  // byte_of_character() counts from the beginning
      break;
    }
  }
  check(repaired.starts_with(rebuilt), "a character is written as it was read");
  check(byte_of_character(repaired, count_characters(repaired)) == repaired.size(),
        "all characters are counted");

  Utf8Stream stream;
  std::string streamed;
  const size_t piece = data[0] % 8 + 1;
  for (size_t at = 0; at < text.size(); at += piece) {
    streamed += stream.push(std::string_view(text).substr(at, piece));
    check(valid_utf8_prefix(streamed) == streamed.size(), "a stream gives whole characters");
  }
  check(streamed + stream.finish() == repaired, "a stream is repaired like the whole text");
  return 0;
}
