// Texts in the slots of a decoder: which rows a step has.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "src/core/error.h"
#include "src/inference/text_batch.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

// Its logits choose the token after the one of their row. It keeps what it was given.
class CountingDecoder final : public Decoder {
 public:
  explicit CountingDecoder(int64_t slots) : sequences(static_cast<size_t>(slots)) {}
  int64_t slots() const override { return std::ssize(sequences); }
  int64_t context() const override { return 1000; }
  int64_t length(int32_t slot) const override { return std::ssize(sequences.at(slot)); }
  void clear(int32_t slot) override { sequences.at(slot).clear(); }
  Tensor step(std::span<const DecoderRow> rows) override {
    last.assign(rows.begin(), rows.end());
    std::vector<float> logits;
    for (const DecoderRow& row : rows) {
      sequences.at(row.slot).push_back(row.token);
      if (row.is_asked) {
        for (int32_t token = 0; token < 256; ++token) {
          logits.push_back(token == row.token + 1 ? 1.0F : 0.0F);
        }
      }
    }
    const Tensor all = Tensor::empty(test_memory(), {std::ssize(logits) / 256, 256}, DType::kF32,
                                     MemoryClass::kData);
    std::ranges::copy(logits, all.data<float>());
    return all;
  }
  std::vector<std::vector<int32_t>> sequences;
  std::vector<DecoderRow> last;
};

struct Texts {
  explicit Texts(int64_t slots) : decoder(slots), batch(decoder, test_stream(), 256) {}
  TextWriter& add(size_t prompt, int32_t last, int64_t tokens, bool tells = false) {
    TextRequest request{.tokens = tokens,
                        .sampling = {.temperature = 0},
                        .likeliest = tells ? 1 : -1,
                        .tells_prompt = tells};
    request.prompt.assign(prompt, last);
    if (prompt > 1000) {
      request.prompt[0] = 'z';  // before what the decoder's context takes
    }
    writers.push_back(std::make_unique<TextWriter>(std::move(request), *tokenizer));
    batch.add(*writers.back());
    return *writers.back();
  }
  // How many rows of the last step each slot had.
  std::vector<int64_t> rows() const {
    std::vector<int64_t> counts(decoder.sequences.size());
    for (const DecoderRow& row : decoder.last) {
      ++counts.at(static_cast<size_t>(row.slot));
    }
    return counts;
  }
  std::unique_ptr<Tokenizer> tokenizer = make_bytes_tokenizer();
  CountingDecoder decoder;
  TextBatch batch;
  std::vector<std::unique_ptr<TextWriter>> writers;
};

using Rows = std::vector<int64_t>;

TEST(TextBatch, PromptsAreReadInChunksBesideTexts) {
  Texts texts(3);
  TextWriter& first = texts.add(3, 'a', 5);
  texts.batch.step();
  EXPECT_EQ(first.take(), "b");
  TextWriter& second = texts.add(300, 'm', 2);
  TextWriter& third = texts.add(220, 't', 2);
  texts.batch.step();
  EXPECT_EQ(texts.rows(), (Rows{1, 256, 0}));
  texts.batch.step();
  EXPECT_EQ(texts.rows(), (Rows{1, 44, 212}));
  EXPECT_EQ(second.take(), "n");
  texts.batch.step();
  EXPECT_EQ(texts.rows(), (Rows{1, 1, 8}));
  EXPECT_TRUE(second.has_ended() && second.is_cut());
  EXPECT_EQ(third.take(), "u");
  texts.batch.step();
  EXPECT_EQ(texts.rows(), (Rows{1, 0, 1}));
  EXPECT_EQ(first.take(), "cdef");
  EXPECT_TRUE(texts.batch.is_empty());
}

TEST(TextBatch, OfSeveralStopTextsTheFirstInTheTextEndsIt) {
  using Case = std::pair<std::vector<std::string>, std::string>;
  // In the last one, "cd" is the beginning of a stop text when another one ends the text.
  for (const auto& [stops, text] :
       {Case{{"de", "cde"}, "b"}, Case{{"cde", "de"}, "b"}, Case{{"cdf", "d"}, "bc"}}) {
    Texts texts(1);
    TextWriter writer({.prompt = {'a'}, .stops = stops, .sampling = {.temperature = 0}},
                      *texts.tokenizer);
    texts.batch.add(writer);
    while (!texts.batch.is_empty()) {
      texts.batch.step();
    }
    EXPECT_EQ(writer.take(), text);
    EXPECT_FALSE(writer.is_cut());
  }
}

TEST(TextBatch, ATextThatIsRemovedLeavesNothing) {
  Texts texts(2);
  TextWriter& first = texts.add(300, 'a', 9);
  texts.batch.step();
  texts.batch.remove(first);
  EXPECT_TRUE(texts.batch.is_empty());
  TextWriter& second = texts.add(2, 'x', 9);
  texts.batch.step();
  EXPECT_EQ(texts.rows(), (Rows{2, 0}));
  EXPECT_EQ(second.take(), "y");
  texts.batch.remove(first);
  EXPECT_EQ(texts.batch.texts(), 1);
}

// Each of 257 tokens 'a' but the first is as likely as a logit of 0 beside one of 1, which 'b' has.
// The sum of 256 exponentials in f64 is off by at most 256 x 2^-53 of itself, below 1e-12.
TEST(TextBatch, APromptThatIsToldIsReadInChunks) {
  for (const int64_t tokens : {0, 1}) {
    Texts texts(2);
    TextWriter& silent = texts.add(1, 'x', 9);
    TextWriter& told = texts.add(257, 'a', tokens, true);
    while (!told.has_ended()) {
      texts.batch.step();
    }
    EXPECT_EQ(silent.take(), "yz");
    EXPECT_EQ(told.take(), tokens == 0 ? "" : "b");
    EXPECT_EQ(told.tokens(), tokens);
    const std::vector<ChosenToken> all = told.take_tokens();
    ASSERT_EQ(std::ssize(all), 257 + tokens);
    EXPECT_TRUE(std::isnan(all[0].chosen.logprob) && all[0].likeliest.empty());
    for (size_t i = 1; i < all.size(); ++i) {
      EXPECT_EQ(all[i].chosen.text, i < 257 ? "a" : "b");
      EXPECT_NEAR(all[i].chosen.logprob, (i < 257 ? -1 : 0) - std::log(255 * std::exp(-1.0) + 1),
                  1e-12);
      EXPECT_EQ(all[i].likeliest.at(0).text, "b");
    }
  }
}

TEST(TextBatch, APromptIsNotToldFromLogitsThatAreNotFinite) {
  Texts texts(1);
  TextWriter& told = texts.add(2, 'a', 0, true);
  EXPECT_THROW(told.read(1, std::array{0.0F, std::nanf("")}), Error);
}

TEST(TextBatch, ALongPromptKeepsItsEnd) {
  Texts texts(1);
  texts.add(1001, 'a', 1);
  while (!texts.batch.is_empty()) {
    texts.batch.step();
  }
  EXPECT_EQ(texts.decoder.sequences[0], std::vector<int32_t>(1000, 'a'));
  EXPECT_THROW(texts.add(0, 'a', 1), Error);
  EXPECT_THROW(texts.add(1001, 'a', 1, true), Error);
}

}  // namespace
}  // namespace tandem::testing
