#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "comm/transport/local_control.h"
#include "comm/transport/self_collectives.h"
#include "layers/embedding/embedding.h"
#include "layers/models/classifier.h"
#include "src/inference/evaluation.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

constexpr int64_t kWindows = 7, kContext = 4, kVocab = 5;

// Seven validation windows. Some have fewer targets than others, so that a mean over windows, or
// over batches, is not the mean over targets.
class SevenWindows final : public Dataset {
 public:
  SevenWindows() : Dataset(DatasetInfo()) {
    info_.path = "seven windows";
    info_.vocab_size = kVocab;
    for (int32_t i = 0; i < kWindows * kContext; ++i) {
      tokens_.push_back(static_cast<int32_t>((i * i + 3 * i) % kVocab));
      const bool is_target = i % kContext <= i / kContext % kContext;
      targets_.push_back(is_target ? static_cast<int32_t>((2 * i + i / 3) % kVocab)
                                   : kIgnoreTarget);
    }
  }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int32_t>& targets() const { return targets_; }

  int64_t windows(Split, int64_t) const override { return kWindows; }
  MicroBatch training_batch(const TrainingOptions&, int64_t, int64_t) const override {
    fail(ExitCode::kInternal, "no test trains on it");
  }
  MicroBatch validation_batch(int64_t context, int64_t first, int64_t count) const override {
    const int64_t samples = std::min(count, kWindows - first);
    const auto cut = [&](const std::vector<int32_t>& all) {
      return std::vector(all.begin() + first * context, all.begin() + (first + samples) * context);
    };
    MicroBatch batch{.samples = samples};
    batch.tokens = cut(tokens_);
    batch.targets = cut(targets_);
    batch.target_count = samples * context - std::ranges::count(batch.targets, kIgnoreTarget);
    return batch;
  }

 private:
  std::vector<int32_t> tokens_, targets_;
};

// A model that is one table: row `token` holds the logits of the next token.
class Bigrams final : public Classifier {
 public:
  Bigrams() : Classifier(kVocab) {
    add({{"table", {&table_}}, [this](Context& context, const Flow& tokens) -> Flow {
           const Tensor rows = embedding(context, tokens[0].value(), table_, nullptr).value();
           return {Variable(rows.reshape({tokens[0].elements(), kVocab}))};
         }});
    bind_parameters(parameters_of(*this), DType::kF32, 3);
  }
  double flops_per_sample() const override { return 0; }
  std::vector<double> table() const { return values_of(table_.value); }

 private:
  Parameter table_{.name = "table", .shape = {kVocab, kVocab}};
};

class EvaluationOfBigrams : public ::testing::Test {
 protected:
  Evaluation evaluation(int64_t micro_batch, int64_t max_batches = 0,
                        const std::function<bool()>& stops = {}) {
    Uploader upload(test_stream(), test_memory(), test_memory(), data_.info(), DType::kF32);
    return evaluate(model_, {.stream = test_stream(), .memory = test_memory()}, data_, kContext,
                    micro_batch, max_batches, upload, alone_, stops);
  }
  // -log softmax(logits)[target] by its definition, summed over all targets at once.
  Evaluation by_definition(int64_t windows) const {
    const std::vector<double> table = model_.table();
    Evaluation sum;
    for (int64_t i = 0; i < windows * kContext; ++i) {
      if (data_.targets()[i] == kIgnoreTarget) {
        continue;
      }
      const auto logits = table.begin() + data_.tokens()[i] * kVocab;
      double total = 0;
      std::for_each_n(logits, kVocab, [&](double logit) { total += std::exp(logit); });
      sum.loss += std::log(total) - logits[data_.targets()[i]];
      const auto largest = std::max_element(logits, logits + kVocab) - logits;
      sum.accuracy += largest == data_.targets()[i] ? 1 : 0;
      ++sum.targets;
    }
    const auto targets = static_cast<double>(sum.targets);
    return {sum.loss / targets, sum.accuracy / targets, sum.targets};
  }
  void expect_near(const Evaluation& actual, const Evaluation& expected) {
    // A target's loss is below 8 and has about ten f32 roundings of 2^-24.
    EXPECT_NEAR(actual.loss, expected.loss, 10 * 8 * 0x1p-24);
    EXPECT_EQ(actual.accuracy, expected.accuracy);
    EXPECT_EQ(actual.targets, expected.targets);
  }

  SevenWindows data_;
  Bigrams model_;
  LocalControl control_;
  SelfCollectives collectives_;
  Group alone_{control_, collectives_, test_memory(), {0}};
};

TEST_F(EvaluationOfBigrams, IsTheMeanOverTargets) {
  const Evaluation expected = by_definition(kWindows);
  EXPECT_GT(expected.accuracy, 0);
  expect_near(evaluation(2), expected);
}

// f64 adds f32 losses between 2^-20 and 2^3 without rounding, in any order.
TEST_F(EvaluationOfBigrams, HasTheSameBitsForEverySizeOfBatch) {
  const Evaluation whole = evaluation(kWindows);
  for (const int64_t micro_batch : {1, 2, 3, 4, 5, 6, 100}) {
    SCOPED_TRACE(micro_batch);
    const Evaluation parts = evaluation(micro_batch);
    EXPECT_EQ(parts.loss, whole.loss);
    EXPECT_EQ(parts.accuracy, whole.accuracy);
    EXPECT_EQ(parts.targets, whole.targets);
  }
}

TEST_F(EvaluationOfBigrams, StopsAfterTheBatchesAskedFor) {
  expect_near(evaluation(2, 2), by_definition(4));
  expect_near(evaluation(3, 1), by_definition(3));
  expect_near(evaluation(3, 9), by_definition(kWindows));
}

TEST_F(EvaluationOfBigrams, EndsWhenItIsAskedTo) {
  for (const int last : {1, 2}) {
    int asked = 0;
    EXPECT_TRUE(std::isnan(evaluation(1, 0, [&] { return ++asked == last; }).loss));
    EXPECT_EQ(asked, last);
  }
  int asked = 0;
  expect_near(evaluation(1, 0, [&] { return ++asked == 3; }), by_definition(kWindows));
  EXPECT_EQ(asked, 2);  // before windows 0 and 4 of 7
}

}  // namespace
}  // namespace tandem::testing
