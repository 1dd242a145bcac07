// Micro-batches in windows of whole documents.
#include <algorithm>
#include <map>

#include "src/data/document_dataset.h"
#include "tests/data/data_files.h"
#include "tests/data/text_dataset.h"

namespace tandem::testing {
namespace {

constexpr int64_t kContext = 7;
const Windows kDocuments{WindowKind::kDocuments, kContext, 5};

// The tokens of a row: its inputs, and the last one, which is a target only.
std::vector<int32_t> row_of(const std::vector<int32_t>& all, int64_t row) {
  return {all.begin() + row * kContext, all.begin() + (row + 1) * kContext};
}

// Documents of 3, 5, 4 and 9 tokens. The last one fills a window and leaves a token; then 5 and 3
// fill one, and 4 and 1 leave room for 3 more.
TEST(DocumentDataset, WindowsHoldWholeDocuments) {
  const TemporaryFolder folder;
  const auto tokens = counting<uint16_t>(21);
  const std::string path =
      write_text<uint16_t>(folder / "a.h5", tokens, tokens, 100, {{0, 3, 8, 12, 21}});
  const auto dataset = open_dataset(path, {WindowKind::kDocuments, kContext, 5});
  ASSERT_EQ(dataset->windows(Split::kTrain, kContext), 3);
  const MicroBatch batch = dataset->training_batch({.seed = 5, .context = kContext}, 0, 3);
  std::map<int32_t, int64_t> row_with;  // by the first token
  for (int64_t row = 0; row < 3; ++row) {
    row_with[batch.tokens[row * kContext]] = row;
  }
  const int32_t none = kIgnoreTarget;
  const auto expect_row = [&](int32_t first, const std::vector<int32_t>& expected,
                              const std::vector<int32_t>& targets,
                              const std::vector<int32_t>& positions) {
    ASSERT_TRUE(row_with.contains(first)) << first;
    EXPECT_EQ(row_of(batch.tokens, row_with[first]), expected);
    EXPECT_EQ(row_of(batch.targets, row_with[first]), targets);
    EXPECT_EQ(row_of(batch.positions, row_with[first]), positions);
  };
  expect_row(12, {12, 13, 14, 15, 16, 17, 18}, {13, 14, 15, 16, 17, 18, 19}, {0, 1, 2, 3, 4, 5, 6});
  expect_row(3, {3, 4, 5, 6, 7, 0, 1}, {4, 5, 6, 7, none, 1, 2}, {0, 1, 2, 3, 4, 0, 1});
  expect_row(8, {8, 9, 10, 11, 20, 0, 0}, {9, 10, 11, none, none, none, none},
             {0, 1, 2, 3, 0, 0, 0});
  EXPECT_EQ(batch.target_count, 7 + 6 + 3);
  const PackingCosts costs = dataset->packing_costs().value();
  EXPECT_EQ(costs, (PackingCosts{3.0 / 24, 1}));
  EXPECT_EQ(costs.text(), "12.5 % padding, 1 cut in documents");
}

// Windows of validation, of documents of 3, 5, 4 and 9 tokens, with every token a target and with a
// mask, under which the longest document is not cut but loses its first tokens.
TEST(DocumentDataset, ValidationWindowsHoldSeveralDocuments) {
  const TemporaryFolder folder;
  const auto tokens = counting<uint16_t>(21);
  const int32_t none = kIgnoreTarget;
  std::vector<uint8_t> loss(21, 0);
  for (const int64_t place : {0, 4, 7, 8, 10, 13, 20}) {
    loss[place] = 1;
  }
  const auto expect_batch = [](const MicroBatch& batch, const std::vector<int32_t>& expected,
                               const std::vector<int32_t>& targets,
                               const std::vector<int32_t>& positions) {
    EXPECT_EQ(batch.samples, std::ssize(expected) / kContext);
    EXPECT_EQ(batch.tokens, expected);
    EXPECT_EQ(batch.targets, targets);
    EXPECT_EQ(batch.positions, positions);
    EXPECT_EQ(batch.target_count, std::ssize(targets) - std::ranges::count(targets, kIgnoreTarget));
  };
  const auto opened = [&](const std::vector<uint8_t>& mask) {
    return open_dataset(write_text<uint16_t>(folder / "a.h5", tokens, tokens, 100,
                                             {{0, 3, 8, 12, 21}}, kDatasetFormat, mask),
                        kDocuments);
  };
  const auto all = opened({});
  ASSERT_EQ(all->windows(Split::kVal, kContext), 3);
  expect_batch(all->validation_batch(kContext, 0, 1), {12, 13, 14, 15, 16, 17, 18},
               {13, 14, 15, 16, 17, 18, 19}, {0, 1, 2, 3, 4, 5, 6});
  expect_batch(all->validation_batch(kContext, 1, 5), {3, 4, 5, 6, 7, 0, 1, 8, 9, 10, 11, 20, 0, 0},
               {4, 5, 6, 7, none, 1, 2, 9, 10, 11, none, none, none, none},
               {0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 0, 0, 0});
  const auto masked = opened(loss);
  ASSERT_EQ(masked->windows(Split::kVal, kContext), 3);
  expect_batch(masked->validation_batch(kContext, 0, 5),
               {13, 14, 15, 16, 17, 18, 19, 3, 4, 5, 6, 7, 0, 1, 8, 9, 10, 11, 0, 0, 0},
               {none, none, none, none, none, none, 20,   4,    none, none, 7,
                none, none, none, none, 10,   none, none, none, none, none},
               {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 0, 0, 0});
}

// Each document is one token longer than a window. Their first windows come in the order of the
// text, while those of training are mixed.
TEST(DocumentDataset, ValidationIsInTheOrderOfTheText) {
  const TemporaryFolder folder;
  constexpr int64_t kDocumentCount = 400, kLength = kContext + 2;
  std::vector<uint64_t> starts;
  for (int64_t i = 0; i <= kDocumentCount; ++i) {
    starts.push_back(i * kLength);
  }
  const auto tokens = counting<uint16_t>(kDocumentCount * kLength);
  const auto dataset = open_dataset(
      write_text<uint16_t>(folder / "a.h5", tokens, tokens, std::ssize(tokens), starts),
      kDocuments);
  const MicroBatch batch = dataset->validation_batch(kContext, 0, kDocumentCount);
  for (int64_t i = 0; i < kDocumentCount; ++i) {
    EXPECT_EQ(batch.tokens[i * kContext], i * kLength);
  }
}

std::vector<uint64_t> some_starts(int64_t tokens) {
  std::vector<uint64_t> starts;
  for (uint64_t at = 0, length = 1; at < static_cast<uint64_t>(tokens);
       at += length, length = length * 7 % 23) {
    starts.push_back(at);
  }
  starts.push_back(static_cast<uint64_t>(tokens));
  return starts;
}

// Whatever the micro-batches, and wherever a run begins: sample n is sample n.
TEST(DocumentDataset, ASampleDependsOnItsPositionOnly) {
  const TemporaryFolder folder;
  constexpr int64_t kTokens = 30000;
  const std::string path = write_text<uint16_t>(folder / "a.h5", counting<uint16_t>(kTokens), {},
                                                kTokens, some_starts(kTokens));
  const auto dataset = open_dataset(path, kDocuments), again = open_dataset(path, kDocuments);
  const int64_t windows = dataset->windows(Split::kTrain, kContext);
  const TrainingOptions options{.seed = 5, .context = kContext};
  const MicroBatch all = dataset->training_batch(options, windows - 10, 20);
  for (int64_t i = 0; i < 20; ++i) {
    const MicroBatch one = again->training_batch(options, windows - 10 + i, 1);
    EXPECT_EQ(one.tokens, row_of(all.tokens, i));
    EXPECT_EQ(one.targets, row_of(all.targets, i));
    EXPECT_EQ(one.positions, row_of(all.positions, i));
  }
  const auto other = open_dataset(path, {WindowKind::kDocuments, kContext, 6});
  EXPECT_NE(other->training_batch({.seed = 6, .context = kContext}, 0, 20).tokens,
            dataset->training_batch(options, 0, 20).tokens);
}

// In each epoch. Every token but the first of a piece is a target; those that are no input are last
// in their window.
TEST(DocumentDataset, AnEpochHasEachTokenOnce) {
  const TemporaryFolder folder;
  constexpr int64_t kTokens = 30000;
  const std::string path = write_text<uint16_t>(folder / "a.h5", counting<uint16_t>(kTokens), {},
                                                kTokens, some_starts(kTokens));
  const auto dataset = open_dataset(path, kDocuments);
  const int64_t windows = dataset->windows(Split::kTrain, kContext);
  std::vector<int32_t> order[2];
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    const MicroBatch batch =
        dataset->training_batch({.seed = 5, .context = kContext}, epoch * windows, windows);
    order[epoch] = batch.tokens;
    std::vector<int> seen(kTokens, 0);
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      const bool is_last = i % kContext == kContext - 1;
      const int32_t token = batch.tokens[i], target = batch.targets[i];
      EXPECT_TRUE(target == kIgnoreTarget || target == token + 1) << i;
      // Padding has token 0, too.
      seen[token] += token != 0 ? 1 : 0;
      if (is_last && target != kIgnoreTarget) {
        ++seen[target];
      }
    }
    // A last token that begins a piece is neither an input nor a target.
    const int64_t lost = kTokens - 1 - std::ranges::count(seen, 1);
    EXPECT_EQ(std::ranges::count_if(seen, [](int n) { return n > 1; }), 0);
    EXPECT_LT(lost, windows);
    EXPECT_EQ(
        windows * (kContext + 1),
        kTokens + static_cast<int64_t>(std::lround(dataset->packing_costs()->padding *
                                                   static_cast<double>(windows * (kContext + 1)))));
  }
  EXPECT_NE(order[0], order[1]);
}

// Documents of 3, 5, 4 and 9 tokens, of which the last one loses its first token; nothing is cut.
TEST(DocumentDataset, WithAMaskDocumentsAreWholeAndSomeTokensOnlyRead) {
  const TemporaryFolder folder;
  const auto tokens = counting<uint16_t>(21);
  const auto written = [&](const std::vector<uint8_t>& loss) {
    return write_text<uint16_t>(folder / "a.h5", tokens, tokens, 100, {{0, 3, 8, 12, 21}},
                                kDatasetFormat, loss);
  };
  std::vector<uint8_t> loss(21, 0);
  for (const int64_t place : {0, 4, 7, 8, 10, 13, 20}) {
    loss[place] = 1;
  }
  const auto dataset = open_dataset(written(loss), kDocuments);
  ASSERT_EQ(dataset->windows(Split::kTrain, kContext), 3);
  EXPECT_EQ(dataset->packing_costs(), (PackingCosts{4.0 / 24, 1}));
  const MicroBatch batch = dataset->training_batch({.seed = 5, .context = kContext}, 0, 3);
  EXPECT_EQ(batch.target_count, 4);
  std::map<int32_t, int32_t> targets;
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.targets[i] != kIgnoreTarget) {
      targets[batch.tokens[i]] = batch.targets[i];
    }
  }
  // Tokens 0 and 8 begin documents, and 13 begins what is left of the last one.
  EXPECT_EQ(targets, (std::map<int32_t, int32_t>{{3, 4}, {6, 7}, {9, 10}, {19, 20}}));
  expect_error(ExitCode::kConfig, {"data.windows = stream", "a.h5", "only read", "use documents"},
               [&] { open_dataset(folder / "a.h5"); });
  const std::string hash = compute_content_hash(folder / "a.h5");
  loss[9] = 1;
  EXPECT_NE(compute_content_hash(written(loss)), hash);
  loss[9] = 2;
  const auto wrong = open_dataset(written(loss), kDocuments);
  expect_error(ExitCode::kData, {"a.h5: /train/loss has 2 at place 9"},
               [&] { wrong->training_batch({.seed = 5, .context = kContext}, 0, 3); });
  loss.pop_back();
  expect_error(ExitCode::kData, {"a.h5: /train/loss must have a number for each of the 21 tokens"},
               [&] { open_dataset(written(loss), kDocuments); });
}

TEST(DocumentDataset, NamesWhatItCannotRead) {
  const TemporaryFolder folder;
  const std::string old =
      write_text<uint16_t>(folder / "old.h5", counting<uint16_t>(20), {}, 100, {}, 3);
  expect_error(
      ExitCode::kConfig,
      {"data.windows = documents", "old.h5", "where its documents begin", "`tandem prepare text`"},
      [&] { open_dataset(old, kDocuments); });
  const std::string bad =
      write_text<uint16_t>(folder / "bad.h5", counting<uint16_t>(20), {}, 100, {{0, 9, 8, 20}});
  expect_error(ExitCode::kData, {"bad.h5: /train/starts has 8 at place 2"},
               [&] { open_dataset(bad, kDocuments); });
  const auto empty = open_dataset(
      write_text<uint16_t>(folder / "short.h5", counting<uint16_t>(20), {}, 100), kDocuments);
  expect_error(ExitCode::kData, {"the validation set is empty"},
               [&] { empty->require_windows(Split::kVal, kContext); });
}

}  // namespace
}  // namespace tandem::testing
