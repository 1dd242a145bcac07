// Texts that are too long to be kept in memory as a whole.
#include <numeric>
#include <random>

#include "src/data/bpe/bpe_tokenizer.h"
#include "src/data/bpe/trainer.h"
#include "src/data/dataset.h"
#include "src/prepare/prepare.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

// 5 MiB, of words and white space of all kinds, and with broken UTF-8 here and there.
std::string long_text(int64_t* broken) {
  const std::vector<std::string> words = {
      "the",
      " a ",
      "it's",
      "1234 ",
      "\n",
      "\n\n ",
      " caf\303\251",
      " ",
      "\344\275\240\345\245\275\343\200\200 ",  // an ideographic space, and a space after it
      "\343\200\202\n",
      "\360\237\230\200",
      "\302\240",
      " ",
      "?! ",
      "\t",
      "\357\274\214"};
  std::mt19937 random(7);
  std::string text;
  for (*broken = 0; text.size() < (size_t{5} << 20);) {
    text += words[random() % words.size()];
    if (random() % 100000 == 0) {
      text += "\377";
      ++*broken;
    }
  }
  return text;
}

PrepareTextOptions options_of(const TemporaryFolder& folder, const std::string& input,
                              TokenizerKind tokenizer) {
  PrepareTextOptions options;
  options.input = {input};
  options.output = folder / "out.h5";
  options.tokenizer = tokenizer;
  options.vocab_size = tokenizer == TokenizerKind::kBpe ? 400 : 0;
  options.threads = 2;
  return options;
}

// The words that the whole text has, without threads and shares.
BpeModel trained_on(const std::string& text) {
  WordCounts counts;
  PreTokenizer(kGpt2PreTokenizer, "GPT-2").for_each_word(text, [&](std::string_view word) {
    ++counts[std::string(word)];
  });
  return train_bpe(counts, 400);
}

TEST(LongText, ItsTokensAreThoseOfTheWhole) {
  const TemporaryFolder folder;
  int64_t broken = 0;
  std::string text = long_text(&broken);
  const std::string input = folder.write("a.txt", text);
  repair_utf8(&text);
  const int64_t characters = count_characters(text);
  const size_t cut =
      byte_of_character(text, static_cast<int64_t>(0.9 * static_cast<double>(characters)));
  for (const TokenizerKind kind :
       {TokenizerKind::kBytes, TokenizerKind::kChar, TokenizerKind::kBpe}) {
    const PrepareReport report = prepare_text(options_of(folder, input, kind));
    EXPECT_EQ(report.characters, characters);
    EXPECT_EQ(report.broken_utf8, broken);
    const H5Reader file(folder / "out.h5");
    const auto tokenizer = load_tokenizer(file);
    const auto expect_split = [&](const std::string& name, std::string_view part) {
      std::vector<int32_t> tokens = tokenizer->encode(part);
      if (kind == TokenizerKind::kBpe && name == "/val/tokens") {
        tokens.push_back(*tokenizer->end_of_text());
      }
      const auto stored = file.read_all<uint16_t>(name);
      EXPECT_TRUE(std::ranges::equal(stored, tokens)) << tokenizer->kind() << name;
    };
    expect_split("/train/tokens", std::string_view(text).substr(0, cut));
    expect_split("/val/tokens", std::string_view(text).substr(cut));
    verify_content(inspect_dataset(folder / "out.h5"), true);
    if (const auto* bpe = dynamic_cast<const BpeTokenizer*>(tokenizer.get())) {
      EXPECT_TRUE(tokenizer_json(bpe->model()) == tokenizer_json(trained_on(text.substr(0, cut))));
    }
  }
}

// More than 2^20 hashes of records are compared in several passes.
TEST(LongText, LeaksAmongMoreRecordsThanFitInMemory) {
  const TemporaryFolder folder;
  constexpr int64_t kRecords = (int64_t{1} << 20) + 70000, kVal = 40;
  std::string lines = "text\n";
  for (int64_t i = 0; i < kRecords; ++i) {
    const bool is_val = i >= kRecords - kVal;
    lines += str(is_val ? i - 1000000 + (i % 2) * 5000000 : i, "\n");
  }
  PrepareTextOptions options =
      options_of(folder, folder.write("a.csv", lines), TokenizerKind::kBytes);
  options.column = "text";
  // The last 40 records have 300 characters with their line ends.
  options.val_fraction = 296.0 / static_cast<double>(lines.size() - 6);
  const PrepareReport report = prepare_text(options);
  EXPECT_EQ(report.documents, kRecords);
  EXPECT_EQ(report.leaked, kVal / 2);
}

// Files of other kinds that someone named by mistake.
TEST(LongText, WhatIsNoTextIsRefused) {
  const TemporaryFolder folder;
  const std::string text(5000, 'x');
  prepare_text(options_of(folder, folder.write("a.txt", text), TokenizerKind::kBytes));
  std::string utf16;
  for (const char letter : text) {
    utf16 += {letter, '\0'};
  }
  for (const auto& [name, bytes] :
       {std::pair<std::string, std::string>{"a.h5", read_bytes(folder / "out.h5")},
        {"a.png", png_of(test_image(3, 30, 30, 1))},
        {"a.utf16", utf16},
        {"latin.txt", "un \351l\350ve a \351t\351 l\340 et \340 c\364t\351 d'un ch\342teau"}}) {
    expect_error(
        ExitCode::kData, {name + ": this is no text in UTF-8: ", "iconv"},
        [&, &name = name, &bytes = bytes] {
          prepare_text(options_of(folder, folder.write(name, bytes), TokenizerKind::kBytes));
        });
  }
  // One character in a hundred may be broken, and a few in a short text.
  const auto with_broken = [&](size_t broken) {
    return prepare_text(
        options_of(folder, folder.write("a.txt", std::string(broken, '\377') + text.substr(broken)),
                   TokenizerKind::kBytes));
  };
  EXPECT_EQ(with_broken(50).broken_utf8, 50);
  expect_error(ExitCode::kData, {"51 of 5000 characters"}, [&] { with_broken(51); });
}

}  // namespace
}  // namespace tandem::testing
