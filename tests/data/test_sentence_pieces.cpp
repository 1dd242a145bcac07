#include <gtest/gtest.h>

#include "src/data/bpe/bpe_tokenizer.h"
#include "tests/data/data_files.h"
#include "tests/data/sentence_pieces.h"

namespace tandem::testing {
namespace {

using Ids = std::vector<int32_t>;

BpeTokenizer tokenizer_of(const BpeModel& model) { return {model, "bpe", "model"}; }

TEST(SentencePieces, CharactersAndElseBytes) {
  BpeTokenizer tokenizer = tokenizer_of(sentence_pieces());
  EXPECT_EQ(tokenizer.encode("hi h\n"), (Ids{261, 257, 258, 1 + '\n'}));
  EXPECT_EQ(tokenizer.encode(" \u00e9"), (Ids{257, 257, 1 + 0xC3, 1 + 0xA9}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  EXPECT_EQ(tokenizer.piece(261), " hi");
  EXPECT_EQ(tokenizer.piece(1 + '\n'), "\n");
  EXPECT_EQ(tokenizer.piece(0), "<s>");
}

TEST(SentencePieces, OnlyTheBeginningOfATextLosesItsSpace) {
  BpeTokenizer tokenizer = tokenizer_of(sentence_pieces());
  for (const std::string text : {"hi \u00e9 hi", " hi", "h\n"}) {
    const Ids ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids), text);
    StreamDecoder whole(tokenizer, true), continued(tokenizer, false);
    std::string one, other;
    for (const int32_t id : ids) {
      one += whole.push(id);
      other += continued.push(id);
    }
    EXPECT_EQ(one, text);
    EXPECT_EQ(other, " " + text);
  }
}

// Otherwise all of a long text, which no pre-tokenizer cuts, would be held at once.
TEST(SentencePieces, ALongTextIsDrained) {
  std::string text, again;
  for (int i = 0; i < 200000; ++i) {
    text += "hi hh  ";
  }
  BpeTokenizer tokenizer = tokenizer_of(sentence_pieces());
  const Ids expected = tokenizer.encode(text);
  Ids drained, ids;
  int times = 0;
  const auto drain = [&] {
    drained.insert(drained.end(), ids.begin(), ids.end());
    ids.clear();
    ++times;
  };
  tokenizer.append_tokens(text, &ids, drain);
  EXPECT_GE(times, std::ssize(expected) / (Tokenizer::kTokensTogether + 8));
  drain();
  EXPECT_EQ(drained, expected);
}

TEST(SentencePieces, MergesAcrossSpacesStay) {
  BpeModel model = sentence_pieces();
  model.pieces.push_back("hi▁");
  model.merges.insert(model.merges.begin() + 1, {260, 257, 262});
  EXPECT_EQ(tokenizer_of(model).encode("hi hi"), (Ids{257, 262, 260}));
}

TEST(SentencePieces, LiveInsideAFile) {
  const TemporaryFolder folder;
  const BpeTokenizer tokenizer = tokenizer_of(sentence_pieces());
  H5Writer writer(folder / "a.h5");
  tokenizer.save(&writer);
  writer.commit();
  const auto loaded = load_tokenizer(H5Reader(folder / "a.h5"));
  EXPECT_EQ(loaded->encode("hi \u00e9"), tokenizer_of(sentence_pieces()).encode("hi \u00e9"));
  EXPECT_EQ(loaded->definition(), tokenizer.definition());
  EXPECT_TRUE(loaded->strips_space());
}

TEST(SentencePieces, EachByteNeedsItsToken) {
  BpeModel model = sentence_pieces();
  model.pieces[1 + 0x1F] = "other";
  expect_error(ExitCode::kData, {"model: no token for byte 31"}, [&] { tokenizer_of(model); });
}

}  // namespace
}  // namespace tandem::testing
