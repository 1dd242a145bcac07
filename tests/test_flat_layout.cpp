#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>

#include "comm/flat_layout.h"
#include "src/core/error.h"

namespace tandem::testing {
namespace {

struct Size {
  int64_t count;
  bool decay;
};

// Owns the parameters that its blocks point to.
struct TestModel {
  std::deque<Parameter> parameters;
  std::vector<BlockParameters> blocks;

  TestModel& block(std::initializer_list<Size> sizes) {
    BlockParameters& added = blocks.emplace_back();
    added.name = str("block", blocks.size());
    for (const Size& size : sizes) {
      parameters.push_back(
          {.name = str("p", parameters.size()), .shape = Shape{size.count}, .decay = size.decay});
      added.parameters.push_back(&parameters.back());
    }
    return *this;
  }
};

TestModel mixed_model() {
  TestModel model;
  model.block({{1000, true}, {37, false}, {24, true}, {3, true}, {16, false}});
  model.block({{5, false}});
  model.block({{4096, true}, {64, false}, {1, false}, {8191, true}, {64, false}});
  model.block({{7, true}, {9, true}});
  return model;
}

int64_t total(const TestModel& model) {
  int64_t count = 0;
  for (const Parameter& parameter : model.parameters) {
    count += parameter.shape.elements();
  }
  return count;
}

TEST(FlatLayout, EveryElementIsInExactlyOneRankPart) {
  const TestModel model = mixed_model();
  for (int ranks : {1, 2, 3, 4, 5, 7, 8, 16, 64}) {
    for (int64_t bucket_bytes : {0, 4096, 20000, 1 << 20}) {
      SCOPED_TRACE(str(ranks, " ranks, buckets of ", bucket_bytes));
      const FlatLayout layout(model.blocks, {.ranks = ranks, .bucket_bytes = bucket_bytes});
      std::vector<std::vector<int>> seen;
      for (const Parameter& parameter : model.parameters) {
        seen.emplace_back(parameter.shape.elements(), 0);
      }
      std::vector<int> flat(layout.elements(), 0);
      for (const Bucket& bucket : layout.buckets()) {
        for (int rank = 0; rank < ranks; ++rank) {
          const Range part = layout.part(bucket, rank);
          EXPECT_EQ(part.count() * ranks, bucket.range.count());
          for (const SegmentPiece& piece : layout.pieces(part)) {
            const Segment& segment = layout.segments()[piece.segment];
            EXPECT_EQ(segment.offset + piece.segment_offset, piece.offset);
            for (int64_t i = 0; i < piece.count; ++i) {
              ++seen[segment.parameter][piece.segment_offset + i];
              ++flat[piece.offset + i];
            }
          }
        }
      }
      for (const auto& counts : seen) {
        EXPECT_EQ(std::set<int>(counts.begin(), counts.end()), std::set<int>{1});
      }
      EXPECT_EQ(std::ranges::count(flat, 1), total(model));
      EXPECT_EQ(std::ranges::count(flat, 0), layout.elements() - total(model));
    }
  }
}

TEST(FlatLayout, BucketsAreAlignedAndContiguous) {
  const TestModel model = mixed_model();
  for (int ranks : {1, 3, 8}) {
    const FlatLayout layout(model.blocks, {.ranks = ranks, .bucket_bytes = 8192});
    int64_t next = 0;
    for (const Bucket& bucket : layout.buckets()) {
      EXPECT_EQ(bucket.range.begin, next);
      EXPECT_EQ(bucket.range.count() % (ranks * 128), 0);
      EXPECT_EQ(bucket.first_plain % 8, 0);
      next = bucket.range.end;
    }
    EXPECT_EQ(layout.elements(), next);
    for (const Segment& segment : layout.segments()) {
      EXPECT_EQ(segment.offset % 8, 0) << segment.name;
      const Bucket& bucket = layout.buckets()[segment.bucket];
      EXPECT_EQ(segment.decay, segment.offset < bucket.first_plain) << segment.name;
      EXPECT_GE(segment.offset, bucket.range.begin);
      EXPECT_LE(segment.offset + segment.count, bucket.range.end);
    }
  }
}

TEST(FlatLayout, DecayedFirstAndOddSizesLastInForwardOrder) {
  const TestModel model = mixed_model();
  const FlatLayout layout(model.blocks, {.ranks = 2, .bucket_bytes = 4 * 1080});
  std::vector<std::string> first;
  for (const Segment& segment : layout.segments()) {
    if (segment.bucket == 0) {
      first.push_back(segment.name);
    }
  }
  // Decayed 1000, 24, then 3; plain 16, then 37.
  EXPECT_EQ(first, (std::vector<std::string>{"p0", "p2", "p3", "p4", "p1"}));
  EXPECT_EQ(layout.segment_of(3).offset, 1024);
  EXPECT_EQ(layout.buckets()[0].first_plain, 1032);
  EXPECT_EQ(layout.segment_of(1).offset, 1048);
}

TEST(FlatLayout, SmallNeighboursShareABucketAndLargeBlocksSplit) {
  TestModel model;
  model.block({{100, true}}).block({{100, true}}).block({{100, true}});
  model.block({{300, true}, {300, true}, {900, true}, {50, false}});
  const auto parameters_by_bucket = [&](bool split) {
    const FlatLayout layout(model.blocks,
                            {.ranks = 1, .bucket_bytes = 4 * 650, .split_blocks = split});
    std::vector<int64_t> result;
    for (const Bucket& bucket : layout.buckets()) {
      result.push_back(bucket.parameters);
    }
    return result;
  };
  // 3 * 100 + 300 fit into 650; then 300 alone, as 900 follows; 900 exceeds on its own.
  EXPECT_EQ(parameters_by_bucket(true), (std::vector<int64_t>{4, 1, 1, 1}));
  EXPECT_EQ(parameters_by_bucket(false), (std::vector<int64_t>{3, 4}));
}

TEST(FlatLayout, OnlyOneKindOwnsThePadding) {
  TestModel model;
  model.block({{100, true}}).block({{100, false}});
  const FlatLayout layout(model.blocks, {.ranks = 2, .bucket_bytes = 1});
  ASSERT_EQ(layout.buckets().size(), 2u);
  EXPECT_EQ(layout.buckets()[0].first_plain, 256);
  EXPECT_EQ(layout.buckets()[1].first_plain, 256);
  EXPECT_EQ(layout.buckets()[1].range, (Range{256, 512}));
}

// 2 (N - 1) / N of the padded bytes, worked out by hand.
TEST(FlatLayout, PaddedSizeOfAnAwkwardParameter) {
  TestModel model;
  model.block({{1000003, true}});
  for (const auto& [ranks, bytes] : {std::pair{2, 4000768}, {3, 5335040}, {4, 6002688}}) {
    const FlatLayout layout(model.blocks, {.ranks = ranks, .bucket_bytes = 1 << 20});
    EXPECT_EQ(2 * (ranks - 1) * layout.elements() * 4 / ranks, bytes) << ranks;
  }
}

TEST(FlatLayout, SizesBeyond32Bits) {
  TestModel model;
  model.block({{int64_t{5} << 30, true}, {3, false}}).block({{int64_t{5} << 30, true}});
  const FlatLayout layout(model.blocks, {.ranks = 3, .bucket_bytes = 1 << 20});
  EXPECT_GT(layout.elements(), int64_t{10} << 30);
  EXPECT_EQ(layout.segment_of(2).offset % 384, 0);
  const auto pieces = layout.pieces(layout.part(layout.buckets().back(), 2));
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].segment, 2);
  EXPECT_EQ(pieces[0].segment_offset + pieces[0].count, int64_t{5} << 30);
}

TEST(FlatLayout, HashSeesEveryDifference) {
  const FlatLayout::Options options{.ranks = 2, .bucket_bytes = 8192};
  const auto hash = [&](const TestModel& model) {
    return FlatLayout(model.blocks, options).hash();
  };
  const uint64_t reference = hash(mixed_model());
  EXPECT_EQ(hash(mixed_model()), reference);

  TestModel renamed = mixed_model();
  renamed.parameters[3].name = "other";
  EXPECT_NE(hash(renamed), reference);
  TestModel resized = mixed_model();
  resized.parameters[3].shape = Shape{4};  // no offset changes
  EXPECT_NE(hash(resized), reference);
  TestModel plain = mixed_model();
  plain.parameters[12].decay = false;
  EXPECT_NE(hash(plain), reference);
  TestModel swapped = mixed_model();
  std::swap(swapped.parameters[11].name, swapped.parameters[12].name);
  EXPECT_NE(hash(swapped), reference);
  const TestModel same = mixed_model();
  EXPECT_NE(FlatLayout(same.blocks, {.ranks = 3, .bucket_bytes = 8192}).hash(), reference);
  EXPECT_NE(FlatLayout(same.blocks, {.ranks = 2, .bucket_bytes = 64}).hash(), reference);
}

TEST(FlatLayout, RejectsDuplicatesAndEmptyParameters) {
  TestModel twice = mixed_model();
  twice.blocks[1].parameters.push_back(twice.blocks[0].parameters[0]);
  EXPECT_THROW(FlatLayout(twice.blocks, {}), Error);
  TestModel empty;
  empty.block({{0, true}});
  EXPECT_THROW(FlatLayout(empty.blocks, {}), Error);
}

}  // namespace
}  // namespace tandem::testing
