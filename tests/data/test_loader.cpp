#include <atomic>
#include <chrono>

#include "src/data/loader.h"
#include "tests/data/data_files.h"

namespace tandem::testing {
namespace {

// A dataset whose sample at position p is the single token p. It can fail at a given position, and
// counts how many batches were made.
class CountingDataset : public Dataset {
 public:
  explicit CountingDataset(int64_t fail_at = -1) : Dataset(DatasetInfo{}), fail_at_(fail_at) {}

  int64_t windows(Split, int64_t) const override { return 1000; }
  MicroBatch training_batch(const TrainingOptions& options, int64_t position,
                            int64_t count) const override {
    ++made;
    if (fail_at_ >= position && fail_at_ < position + count) {
      fail(ExitCode::kData, str("broken at ", fail_at_));
    }
    MicroBatch batch{.samples = count, .target_count = options.context};
    for (int64_t i = 0; i < count; ++i) {
      batch.tokens.push_back(static_cast<int32_t>(position + i));
    }
    return batch;
  }
  MicroBatch validation_batch(int64_t, int64_t, int64_t) const override { return {}; }

  mutable std::atomic<int> made = 0;

 private:
  int64_t fail_at_;
};

Loader::Options options_of(int ranks, int rank, int64_t micro_batch, int64_t first_step = 0) {
  const int64_t share = 12 / ranks;
  return {.seed = 1,
          .context = 5,
          .global_batch = 12,
          .first_sample = rank * share,
          .share = share,
          .micro_batch = micro_batch,
          .first_step = first_step,
          .prefetch = 3};
}

// The positions of a step over all ranks, in the order of ranks and micro-batches.
std::vector<int32_t> positions_of_step(int ranks, int64_t micro_batch, int64_t step) {
  const CountingDataset dataset;
  std::vector<int32_t> positions;
  for (int rank = 0; rank < ranks; ++rank) {
    Loader loader(dataset, options_of(ranks, rank, micro_batch, step));
    for (int64_t i = 0; i < 12 / ranks / micro_batch; ++i) {
      const MicroBatch batch = loader.next();
      EXPECT_EQ(batch.samples, micro_batch);
      EXPECT_EQ(batch.target_count, 5);
      positions.insert(positions.end(), batch.tokens.begin(), batch.tokens.end());
    }
  }
  return positions;
}

TEST(Loader, StepsThatAreLeftOutAreNotRead) {
  const CountingDataset dataset(25);  // reading step 2 would fail
  Loader::Options options = options_of(1, 0, 6);
  options.skips = [](int64_t step) { return step == 0 || step == 2; };
  Loader loader(dataset, options);
  for (const int32_t position : {12, 18, 36, 42}) {
    EXPECT_EQ(loader.next().tokens.front(), position);
  }
}

TEST(Loader, StopsWhileItLeavesOutSteps) {
  const CountingDataset dataset;
  Loader::Options options = options_of(1, 0, 6);
  options.skips = [](int64_t) { return true; };
  const Loader loader(dataset, options);
}

TEST(Loader, RanksTakeDisjointPartsOfTheSameBatch) {
  for (const int64_t step : {0, 1, 7}) {
    const std::vector<int32_t> expected = positions_of_step(1, 12, step);
    EXPECT_EQ(expected.front(), step * 12);
    EXPECT_EQ(expected.back(), step * 12 + 11);
    EXPECT_EQ(positions_of_step(1, 3, step), expected);
    EXPECT_EQ(positions_of_step(2, 6, step), expected);
    EXPECT_EQ(positions_of_step(3, 2, step), expected);
    EXPECT_EQ(positions_of_step(4, 1, step), expected);
  }
}

TEST(Loader, GoesOnFromAnyStep) {
  const CountingDataset dataset;
  Loader from_start(dataset, options_of(2, 1, 3));
  for (int i = 0; i < 10; ++i) {
    from_start.next();
  }
  Loader resumed(dataset, options_of(2, 1, 3, 5));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(resumed.next().tokens, from_start.next().tokens);
  }
}

TEST(Loader, PreparesAheadButNotWithoutEnd) {
  const CountingDataset dataset;
  Loader loader(dataset, options_of(1, 0, 12));
  // Three batches wait in the queue, and one is ready to be added.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (dataset.made < 4 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(dataset.made, 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(dataset.made, 4);
  EXPECT_EQ(loader.most_ready(), 3);
}

TEST(Loader, ErrorsComeAfterTheGoodBatches) {
  const CountingDataset dataset(30);
  Loader loader(dataset, options_of(1, 0, 12));
  EXPECT_EQ(loader.next().tokens.front(), 0);
  EXPECT_EQ(loader.next().tokens.front(), 12);
  expect_error(ExitCode::kData, {"broken at 30"}, [&] { loader.next(); });
  expect_error(ExitCode::kData, {"broken at 30"}, [&] { loader.next(); });
}

TEST(Loader, StopsWhenItIsNoLongerWanted) {
  const CountingDataset dataset;
  for (int i = 0; i < 200; ++i) {
    Loader loader(dataset, options_of(1, 0, 12));
    if (i % 2 == 0) {
      loader.next();
    }
  }
}

TEST(Loader, PartsThatDoNotFitAreABug) {
  const CountingDataset dataset;
  expect_error(ExitCode::kInternal, {"Loader: "}, [&] { Loader(dataset, options_of(1, 0, 5)); });
}

}  // namespace
}  // namespace tandem::testing
