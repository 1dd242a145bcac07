// Reading, repairing and counting UTF-8.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "src/data/utf8.h"

namespace tandem::testing {
namespace {

// Replaces broken UTF-8 and returns the code points.
std::vector<int32_t> code_points(std::string text, int64_t* broken) {
  *broken = repair_utf8(&text);
  std::vector<int32_t> points;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = read_utf8(text, at);
    points.push_back(step.code_point);
    at += static_cast<size_t>(step.length);
  }
  return points;
}

TEST(Utf8, BrokenTextIsReadAsPythonReadsIt) {
  struct Case {
    std::string bytes;
    std::vector<int32_t> points;  // of bytes.decode("utf-8", errors="replace") in Python
    int64_t broken;
  };
  const int32_t r = 0xFFFD;
  const std::vector<Case> cases = {
      {"plain", {'p', 'l', 'a', 'i', 'n'}, 0},
      {"\303\251\344\270\255\360\237\230\200", {0xE9, 0x4E2D, 0x1F600}, 0},
      {"\200", {r}, 1},                                  // a continuation byte alone
      {"\377\376", {r, r}, 2},                           // bytes that never occur
      {"\300\257", {r, r}, 2},                           // over-long form of '/'
      {"\340\200\257", {r, r, r}, 3},                    // over-long in three bytes
      {"\355\240\200", {r, r, r}, 3},                    // a surrogate
      {"\364\220\200\200", {r, r, r, r}, 4},             // above U+10FFFF
      {"\360\237\230", {r}, 1},                          // cut short: one maximal subpart
      {"\360\237\230x", {r, 'x'}, 1},                    // cut by another character
      {"\344\270\344\270\255", {r, 0x4E2D}, 1},          // cut by a whole one
      {"\361\200\200\341\200\302b", {r, r, r, 'b'}, 3},  // the example of the Unicode standard
      {"a\303", {'a', r}, 1},
      {"\357\277\275", {r}, 0},  // U+FFFD itself is not broken
  };
  for (const Case& one : cases) {
    int64_t broken = -1;
    EXPECT_EQ(code_points(one.bytes, &broken), one.points) << ::testing::PrintToString(one.bytes);
    EXPECT_EQ(broken, one.broken) << ::testing::PrintToString(one.bytes);
  }
}

TEST(Utf8, CharactersAreCountedAndFound) {
  const std::string text = "a\303\251\344\270\255\360\237\230\200b";
  EXPECT_EQ(count_characters(text), 5);
  EXPECT_EQ(byte_of_character(text, 0), 0u);
  EXPECT_EQ(byte_of_character(text, 2), 3u);
  EXPECT_EQ(byte_of_character(text, 4), 10u);
  EXPECT_EQ(byte_of_character(text, 5), 11u);
  EXPECT_EQ(byte_of_character(text, 9), 11u);
}

TEST(Utf8, AStreamGivesTheSameTextHoweverItIsCut) {
  std::mt19937 random(1);
  const std::vector<std::string> pieces = {"a",    "\303\251", "\344\270\255", "\360\237\230\200",
                                           "\200", "\360\237", "\344\270",     "\377"};
  for (int round = 0; round < 500; ++round) {
    std::string bytes;
    for (int i = 0; i < 10; ++i) {
      bytes += pieces[random() % pieces.size()];
    }
    std::string whole = bytes;
    repair_utf8(&whole);
    Utf8Stream stream;
    std::string joined;
    for (const char byte : bytes) {
      const std::string ready = stream.push(std::string_view(&byte, 1));
      EXPECT_EQ(valid_utf8_prefix(ready), ready.size());
      joined += ready;
    }
    EXPECT_EQ(joined + stream.finish(), whole) << ::testing::PrintToString(bytes);
  }
}

}  // namespace
}  // namespace tandem::testing
