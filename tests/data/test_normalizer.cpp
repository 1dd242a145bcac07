#include <gtest/gtest.h>

#include "src/core/error.h"
#include "src/data/bpe/normalizer.h"

namespace tandem::testing {
namespace {

std::string normal(std::string_view text) {
  std::string storage;
  return std::string(in_normal_form_c(text, &storage));
}

TEST(Normalizer, ComposesWhatComposes) {
  EXPECT_EQ(normal("e\u0301t\u00e9 n\u0303\u0323"), "\u00e9t\u00e9 \u1e47\u0303");
  EXPECT_EQ(normal("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(normal("\u212b"), "\u00c5");
  EXPECT_EQ(normal("\ufb01"), "\ufb01");  // a ligature is kept
  EXPECT_EQ(normal(""), "");
}

TEST(Normalizer, WhatIsNormalIsNotCopied) {
  const std::string_view text = "caf\u00e9, \u4e2d\u6587";
  std::string storage;
  EXPECT_EQ(in_normal_form_c(text, &storage).data(), text.data());
  EXPECT_TRUE(storage.empty());
}

TEST(Normalizer, StepsInOrder) {
  const Normalizer steps(R"({"type":"Sequence","normalizers":[{"type":"NFC"},)"
                         R"({"type":"Prepend","prepend":"_"},{"type":"Sequence","normalizers":[)"
                         R"({"type":"Replace","pattern":{"String":"__"},"content":"-"}]}]})",
                         "test");
  std::string storage;
  EXPECT_EQ(steps.normalize("_e\u0301___", &storage), "-\u00e9-_");
  EXPECT_EQ(steps.normalize("", &storage), "");
  const std::string_view text = "e\u0301";
  EXPECT_EQ(Normalizer("null", "test").normalize(text, &storage).data(), text.data());
}

// Sixty bytes for each, five times over, would be 777 million.
TEST(Normalizer, GrowthHasALimit) {
  const std::string step =
      R"({"type":"Replace","pattern":{"String":"e"},"content":")" + std::string(60, 'e') + "\"}";
  const auto normalized = [&](const std::string& steps, const std::string& text) {
    std::string storage;
    const std::string json = R"({"type":"Sequence","normalizers":[)" + steps + "]}";
    return Normalizer(json, "file: normalizer").normalize(text, &storage).size();
  };
  const std::string text(700, 'e');
  EXPECT_EQ(normalized(step, text), 42000);
  const std::string prepend = R"({"type":"Prepend","prepend":")" + std::string(2000, 'a') + "\"}";
  const std::string steps = step + "," + step + "," + step + "," + step + "," + step;
  for (const auto& [wrong, of, said] :
       {std::tuple(steps, text, "file: normalizer makes over 45824 bytes of a text of 700"),
        std::tuple(prepend, std::string("e"), "makes over 1088 bytes of a text of 1")}) {
    try {
      normalized(wrong, of);
      ADD_FAILURE() << said;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
    }
  }
}

// Long texts are normalised in blocks; an accent that follows its letter there belongs to it.
TEST(Normalizer, LongTexts) {
  constexpr size_t kBlock = 1 << 20;
  for (const size_t before : {kBlock - 2, kBlock - 1, kBlock, kBlock + 1}) {
    const std::string letters(before, 'x');
    EXPECT_TRUE(normal(letters + "e\u0301 o\u0308" + letters + "o\u0308") ==
                letters + "\u00e9 \u00f6" + letters + "\u00f6")
        << before;
  }
  std::string accents = "a";  // and then no ASCII: one block
  for (size_t i = 0; i < kBlock; ++i) {
    accents += "\u00e9";
  }
  EXPECT_TRUE(normal(accents + "e\u0301") == accents + "\u00e9");
}

}  // namespace
}  // namespace tandem::testing
