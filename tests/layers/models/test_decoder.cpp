#include <omp.h>

#include <algorithm>
#include <array>

#include "layers/models/decoder.h"
#include "tests/support/harness.h"
#include "tests/support/small_transformer.h"

namespace tandem::testing {
namespace {

// A model ready to decode, and the logits [T, vocab] of a whole forward pass for comparison.
struct Generation {
  explicit Generation(TransformerConfig config) : model(config) {
    bind_parameters(parameters_of(model), DType::kF64, 1, 0.5);
    test.context.tape = nullptr;
    test.context.training = false;
  }
  std::vector<double> last_logits(std::span<const int32_t> tokens) {
    const Tensor input = int_tensor({1, static_cast<int64_t>(tokens.size())}, tokens);
    const std::vector<double> all = values_of(model.logits(test.context, input).value());
    return std::vector<double>(all.end() - model.config().vocab, all.end());
  }
  Transformer model;
  TestContext test;
};

// Tokens of one sequence; only the last one's logits are asked for.
std::vector<DecoderRow> rows_of(int32_t slot, std::span<const int32_t> tokens) {
  std::vector<DecoderRow> rows;
  for (const int32_t token : tokens) {
    rows.push_back({slot, token, rows.size() + 1 == tokens.size()});
  }
  return rows;
}

// In f64, sums of at most a few hundred terms of order one in about ten successive operations err
// by 1e-16 * 300 * 10 = 3e-13, far below the tolerance of 1e-10.
void expect_close(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-10) << "logit " << i;
  }
}

TEST(Decoder, StepsEqualTheWholeForwardPass) {
  for (const auto& [llama, window] : {std::pair{false, 0}, {true, 0}, {true, 7}}) {
    for (int64_t prompt : {1, 3}) {
      TransformerConfig config = small(llama);
      config.sliding_window = window;
      config.head_width = window > 0 ? 10 : 0;
      config.attention_bias = config.qk_norm = window > 0;
      config.context = 100;
      config.positions = 120;
      config.norm_epsilon = 0.1;
      config.rope = {.theta = 500, .factor = 8, .original_context = 6};
      Generation run(config);
      const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 2, 0);
      const std::vector<int32_t> tokens = some_tokens(100);
      const std::span<const int32_t> all(tokens);
      expect_close(values_of(decoder->prefill(1, all.first(prompt))),
                   run.last_logits(all.first(prompt)));
      for (int64_t n = prompt; n < 100; ++n) {
        const std::vector<double> logits = values_of(decoder->step(rows_of(1, all.subspan(n, 1))));
        if (n % 9 == 0 || n == 99) {
          expect_close(logits, run.last_logits(all.first(n + 1)));
        }
      }
      EXPECT_EQ(decoder->length(1), 100);
      EXPECT_EQ(decoder->length(0), 0);
    }
  }
}

// Context 6: step 7 keeps the last 3 tokens, and the window grows again to 6.
TEST(Decoder, WindowSlidesWhenTheContextIsFull) {
  Generation run(small(true));
  const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 1, 0);
  const std::vector<int32_t> tokens = some_tokens(20);
  const std::span<const int32_t> all(tokens);
  decoder->prefill(0, all.first(1));
  int64_t held = 1;
  for (int64_t n = 1; n < 20; ++n) {
    held = held == 6 ? 3 : held + 1;
    const std::vector<double> logits = values_of(decoder->step(rows_of(0, all.subspan(n, 1))));
    EXPECT_EQ(decoder->length(0), held);
    expect_close(logits, run.last_logits(all.subspan(n + 1 - held, held)));
  }
}

// Prompts are read 256 tokens at a time, also when the window slides.
TEST(Decoder, LongWindowsAreReadInPieces) {
  TransformerConfig config = small(true);
  config.context = config.positions = 600;
  Generation run(config);
  const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 1, 0);
  const std::vector<int32_t> tokens = some_tokens(601);
  const std::span<const int32_t> all(tokens);
  expect_close(values_of(decoder->prefill(0, all.first(600))), run.last_logits(all.first(600)));
  expect_close(values_of(decoder->step(rows_of(0, all.last(1)))), run.last_logits(all.last(300)));
}

// Sequences that begin at different steps, with prompts that are read in pieces or whole, some over
// two slides of the window: each has the same bits as alone, token by token, on one thread.
TEST(Decoder, LogitsDependOnTheOwnSequenceAlone) {
  constexpr int64_t kTokens = 40;
  struct Sequence {
    int64_t begins, prompt, piece;
  };
  const Sequence sequences[] = {{0, 9, 4}, {2, 1, 1}, {3, 12, 12}, {3, 5, 2}};
  for (bool llama : {false, true}) {
    TransformerConfig config = small(llama);
    config.context = config.positions = 16;
    Transformer model(config);
    bind_parameters(parameters_of(model), DType::kF32, 1, 0.5);
    TestContext test;
    test.context.tape = nullptr;
    test.context.training = false;
    const std::vector<int32_t> tokens = some_tokens(4 * kTokens);
    const auto token = [&](int32_t s, int64_t n) { return tokens[s * kTokens + n]; };
    std::vector<std::vector<double>> expected[4];
    omp_set_num_threads(1);
    for (int32_t s = 0; s < 4; ++s) {
      const std::unique_ptr<Decoder> alone = model.decoder(test.context, 1, 0);
      for (int64_t n = 0; n < kTokens; ++n) {
        expected[s].push_back(values_of(alone->step(std::array{DecoderRow{0, token(s, n)}})));
      }
    }
    omp_set_num_threads(2);
    const std::unique_ptr<Decoder> together = model.decoder(test.context, 4, 0);
    int64_t read[4] = {};
    for (int64_t step = 0; step < kTokens; ++step) {
      std::vector<DecoderRow> rows;
      std::vector<double> all;
      for (const int32_t s : {3, 0, 2, 1}) {
        const Sequence& sequence = sequences[s];
        if (step < sequence.begins || read[s] == kTokens) {
          continue;
        }
        const int64_t piece = std::clamp<int64_t>(sequence.prompt - read[s], 1, sequence.piece);
        for (int64_t i = 0; i < piece; ++i) {
          rows.push_back({s, token(s, read[s]++), i == piece - 1});
        }
        const std::vector<double>& logits = expected[s][read[s] - 1];
        all.insert(all.end(), logits.begin(), logits.end());
      }
      ASSERT_EQ(values_of(together->step(rows)), all) << "step " << step;
    }
    omp_set_num_threads(omp_get_num_procs());
  }
}

TEST(Decoder, RowsThatCannotBe) {
  Generation run(small(true));
  const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 2, 0);
  EXPECT_THROW(decoder->step({}), Error);
  EXPECT_THROW(decoder->step(rows_of(2, std::array{1})), std::out_of_range);
  EXPECT_THROW(decoder->step(rows_of(0, std::array{-1})), Error);
  EXPECT_THROW(
      decoder->step(rows_of(0, std::array{static_cast<int32_t>(run.model.config().vocab)})), Error);
  EXPECT_THROW(decoder->step(rows_of(1, some_tokens(7))), Error);  // the window has 6 places
}

// Rows of a prompt's piece that ask for nothing.
TEST(Decoder, NoLogits) {
  Generation run(small(true));
  const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 1, 0);
  EXPECT_EQ(decoder->step(std::array{DecoderRow{0, 3, false}}).elements(), 0);
  const std::vector<int32_t> tokens = {3, 5};
  expect_close(values_of(decoder->step(std::array{DecoderRow{0, 5}})), run.last_logits(tokens));
}

// A window narrower than the context slides like a context of its own.
TEST(Decoder, NarrowWindow) {
  Generation run(small(true));
  const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 1, 4);
  const std::vector<int32_t> tokens = some_tokens(7);
  const std::span<const int32_t> all(tokens);
  EXPECT_EQ(decoder->context(), 4);
  expect_close(values_of(decoder->prefill(0, all.first(6))), run.last_logits(all.subspan(2, 4)));
  expect_close(values_of(decoder->step(rows_of(0, all.last(1)))), run.last_logits(all.last(2)));
  EXPECT_THROW(run.model.decoder(run.test.context, 1, 7), Error);
}

TEST(Decoder, PrefillStartsAnewAndKeepsTheLastTokens) {
  Generation run(small(false));
  const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 1, 0);
  const std::vector<int32_t> tokens = some_tokens(20);
  const std::span<const int32_t> all(tokens);
  decoder->prefill(0, all.first(4));
  const Tensor logits = decoder->prefill(0, all);
  EXPECT_EQ(decoder->length(0), 6);
  expect_close(values_of(logits), run.last_logits(all.last(6)));
  EXPECT_THROW(decoder->prefill(0, {}), Error);
}

TEST(Decoder, ContextOfOne) {
  TransformerConfig config = small(false);
  config.context = 1;
  Generation run(config);
  const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 1, 0);
  const std::vector<int32_t> tokens = {3, 5};
  decoder->prefill(0, std::span(tokens).first(1));
  expect_close(values_of(decoder->step(rows_of(0, std::span(tokens).last(1)))),
               run.last_logits(std::span(tokens).last(1)));
}

}  // namespace
}  // namespace tandem::testing
