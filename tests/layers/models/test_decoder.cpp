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
      const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 1);
      const std::vector<int32_t> tokens = some_tokens(100);
      const std::span<const int32_t> all(tokens);
      expect_close(values_of(decoder->prefill(all.first(prompt))),
                   run.last_logits(all.first(prompt)));
      for (int64_t n = prompt; n < 100; ++n) {
        const std::vector<double> logits = values_of(decoder->step(all.subspan(n, 1)));
        if (n % 9 == 0 || n == 99) {
          expect_close(logits, run.last_logits(all.first(n + 1)));
        }
      }
      EXPECT_EQ(decoder->length(), 100);
    }
  }
}

// Context 6: step 7 keeps the last 3 tokens, and the window grows again to 6.
TEST(Decoder, WindowSlidesWhenTheContextIsFull) {
  Generation run(small(true));
  const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 1);
  const std::vector<int32_t> tokens = some_tokens(20);
  const std::span<const int32_t> all(tokens);
  decoder->prefill(all.first(1));
  int64_t held = 1;
  for (int64_t n = 1; n < 20; ++n) {
    held = held == 6 ? 3 : held + 1;
    const std::vector<double> logits = values_of(decoder->step(all.subspan(n, 1)));
    EXPECT_EQ(decoder->length(), held);
    expect_close(logits, run.last_logits(all.subspan(n + 1 - held, held)));
  }
}

// Three sequences with one beginning, over two slides of the window of 6: the same bits.
TEST(Decoder, SequencesSideBySideEqualEachAlone) {
  for (bool llama : {false, true}) {
    Generation run(small(llama));
    const std::vector<int32_t> tokens = some_tokens(3 * 12 + 2);
    const std::span<const int32_t> prompt = std::span(tokens).last(2), all(tokens);
    const std::unique_ptr<Decoder> together = run.model.decoder(run.test.context, 3);
    std::vector<std::unique_ptr<Decoder>> alone;
    std::vector<double> expected;
    const auto expect = [&](const Tensor& logits) {
      const std::vector<double> row = values_of(logits);
      expected.insert(expected.end(), row.begin(), row.end());
    };
    for (int s = 0; s < 3; ++s) {
      alone.push_back(run.model.decoder(run.test.context, 1));
      expect(alone.back()->prefill(prompt));
    }
    EXPECT_EQ(values_of(together->prefill(prompt)), expected);
    for (int64_t n = 0; n < 12; ++n) {
      expected.clear();
      for (int64_t s = 0; s < 3; ++s) {
        expect(alone[static_cast<size_t>(s)]->step(all.subspan(3 * n + s, 1)));
      }
      EXPECT_EQ(values_of(together->step(all.subspan(3 * n, 3))), expected);
    }
    EXPECT_THROW(together->step(all.first(2)), Error);
  }
}

TEST(Decoder, PrefillStartsAnewAndKeepsTheLastTokens) {
  Generation run(small(false));
  const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 1);
  const std::vector<int32_t> tokens = some_tokens(20);
  const std::span<const int32_t> all(tokens);
  decoder->prefill(all.first(4));
  const Tensor logits = decoder->prefill(all);
  EXPECT_EQ(decoder->length(), 6);
  expect_close(values_of(logits), run.last_logits(all.last(6)));
  EXPECT_THROW(decoder->prefill({}), Error);
}

TEST(Decoder, ContextOfOne) {
  TransformerConfig config = small(false);
  config.context = 1;
  Generation run(config);
  const std::unique_ptr<Decoder> decoder = run.model.decoder(run.test.context, 1);
  const std::vector<int32_t> tokens = {3, 5};
  decoder->prefill(std::span(tokens).first(1));
  expect_close(values_of(decoder->step(std::span(tokens).last(1))),
               run.last_logits(std::span(tokens).last(1)));
}

}  // namespace
}  // namespace tandem::testing
