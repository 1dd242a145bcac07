#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>

#include "comm/sharding/flat_layout.h"
#include "src/core/error.h"

namespace tandem::testing {
namespace {

struct Size {
  int64_t count;
  bool decay;
  bool shared = false, frozen = false;
};

// Owns the parameters that its blocks point to.
struct TestModel {
  std::deque<Parameter> parameters;
  std::vector<BlockParameters> blocks;

  TestModel& block(std::initializer_list<Size> sizes) {
    BlockParameters& added = blocks.emplace_back();
    added.name = str("block", blocks.size());
    for (const Size& size : sizes) {
      parameters.push_back({.name = str("p", parameters.size()),
                            .shape = Shape{size.count},
                            .decay = size.decay,
                            .blocks = size.shared ? 2 : 1,
                            .frozen = size.frozen});
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
      const FlatLayout layout(model.blocks, {.whole = {ranks}, .bucket_bytes = bucket_bytes});
      std::vector<std::vector<int>> seen;
      for (const Parameter& parameter : model.parameters) {
        seen.emplace_back(parameter.shape.elements(), 0);
      }
      std::vector<int> flat(layout.elements(), 0);
      for (const Bucket& bucket : layout.buckets()) {
        for (int rank = 0; rank < ranks; ++rank) {
          const Range part = layout.part(bucket, rank);
          EXPECT_EQ(part.count() * ranks, bucket.range.count());
          for (const Extent& extent : layout.extents(part)) {
            const Segment& segment = layout.segment_of(extent.parameter);
            EXPECT_EQ(segment.offset + extent.in_parameter, extent.in_flat);
            for (int64_t i = 0; i < extent.count; ++i) {
              ++seen[segment.parameter][extent.in_parameter + i];
              ++flat[extent.in_flat + i];
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
    const FlatLayout layout(model.blocks, {.whole = {ranks}, .bucket_bytes = 8192});
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
  const FlatLayout layout(model.blocks, {.whole = {2}, .bucket_bytes = 4 * 1080});
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
  const auto parameters_by_bucket = [&](bool split, bool merge) {
    const FlatLayout layout(
        model.blocks,
        {.whole = {1}, .bucket_bytes = 4 * 650, .split_blocks = split, .merge_blocks = merge});
    std::vector<int64_t> result;
    for (const Bucket& bucket : layout.buckets()) {
      result.push_back(bucket.parameters());
    }
    return result;
  };
  // 3 * 100 + 300 fit into 650. Then 300 is alone, because 900 follows. 900 alone exceeds 650.
  EXPECT_EQ(parameters_by_bucket(true, true), (std::vector<int64_t>{4, 1, 1, 1}));
  EXPECT_EQ(parameters_by_bucket(false, true), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(parameters_by_bucket(false, false), (std::vector<int64_t>{1, 1, 1, 4}));
}

// p0 and p3 are used by other blocks too.
TestModel tied_model() {
  TestModel model;
  model.block({{40, true, true}, {30, true}});
  model.block({{20, true}});
  model.block({{50, true}, {60, false, true}});
  return model;
}

TEST(FlatLayout, WhatABlockSharesIsABucketOfItsOwn) {
  const TestModel model = tied_model();
  const FlatLayout layout(model.blocks, {.whole = {2}, .bucket_bytes = 1 << 20});
  std::vector<std::vector<std::string>> names(layout.buckets().size());
  for (const Segment& segment : layout.segments()) {
    names[segment.bucket].push_back(segment.name);
    EXPECT_EQ(segment.shared, layout.buckets()[segment.bucket].shared) << segment.name;
  }
  // p4 stands before p3: shared parameters of a block come before its own ones.
  EXPECT_EQ(names, (std::vector<std::vector<std::string>>{{"p0"}, {"p1", "p2"}, {"p4"}, {"p3"}}));
}

TEST(FlatLayout, BlocksKnowTheirBucketsAndBucketsTheirFirstBlock) {
  const TestModel model = tied_model();
  const FlatLayout merged(model.blocks, {.whole = {2}, .bucket_bytes = 1 << 20});
  EXPECT_EQ(merged.buckets_of(0), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(merged.buckets_of(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(merged.buckets_of(2), (std::vector<int64_t>{2, 3}));
  std::vector<int64_t> first;
  for (const Bucket& bucket : merged.buckets()) {
    first.push_back(bucket.first_block);
  }
  EXPECT_EQ(first, (std::vector<int64_t>{0, 0, 2, 2}));
  // A split block has several buckets.
  const FlatLayout split(model.blocks, {.whole = {2}, .bucket_bytes = 4});
  EXPECT_EQ(split.buckets_of(2), (std::vector<int64_t>{3, 4}));
  // A block without parameters has no bucket.
  TestModel gap;
  gap.block({{1, true}}).block({}).block({{2, true}});
  const FlatLayout around(gap.blocks, {.bucket_bytes = 1 << 20});
  EXPECT_EQ(around.buckets_of(1), std::vector<int64_t>{});
  EXPECT_EQ(around.buckets_of(2), std::vector<int64_t>{0});
}

TEST(FlatLayout, FrozenParametersHaveBucketsOfTheirOwn) {
  constexpr bool kFrozen = true;
  TestModel model;
  model.block({{16, true, false, kFrozen}, {24, false}, {8, true}, {5, false, false, kFrozen}});
  model.block({{300, true, false, kFrozen}, {9, true}});
  model.block({{4, true, true, kFrozen}, {7, true, true}});
  const auto text = [&](const FlatLayout::Options& options) {
    const FlatLayout layout(model.blocks, options);
    std::string buckets;
    int64_t trained = 0;
    for (const Bucket& bucket : layout.buckets()) {
      buckets += bucket.frozen ? "frozen" : "trained";
      for (int64_t i = bucket.first_segment; i < bucket.last_segment; ++i) {
        EXPECT_EQ(layout.segments()[i].frozen, bucket.frozen);
        buckets += " " + layout.segments()[i].name;
      }
      buckets += "; ";
      trained += bucket.frozen ? 0 : bucket.range.count();
    }
    EXPECT_EQ(layout.trained_elements(), trained);
    return buckets;
  };
  // Frozen parameters do not separate trained ones into several buckets, nor the other way round.
  EXPECT_EQ(text({.bucket_bytes = 1 << 20}),
            "trained p2 p5 p1; frozen p0 p4 p3; trained p7; frozen p6; ");
  EXPECT_EQ(text({.bucket_bytes = 1 << 20, .merge_blocks = false}),
            "trained p2 p1; frozen p0 p3; trained p5; frozen p4; trained p7; frozen p6; ");
}

TEST(FlatLayout, SegmentsDoNotOverlap) {
  const TestModel mixed = mixed_model(), tied = tied_model();
  for (const TestModel* model : {&mixed, &tied}) {
    for (int ranks : {1, 3, 4}) {
      const FlatLayout layout(model->blocks, {.whole = {ranks}, .bucket_bytes = 8192});
      std::vector<int> seen(layout.elements(), 0);
      for (const Segment& segment : layout.segments()) {
        std::for_each_n(seen.begin() + segment.offset, segment.count, [](int& times) { ++times; });
      }
      EXPECT_EQ(std::ranges::max(seen), 1);
    }
  }
}

// Rows of classes are padded on a GPU. The padding is in no extent, but it is in the run of its
// parameter, and in what a message may hold.
TEST(FlatLayout, PaddingOfClassesBelongsToNoParameter) {
  TestModel model;
  model.block({{1025, true}, {5, false}, {24, false}}).block({{16, true}});
  model.parameters[0].classes = model.parameters[1].classes = true;
  const auto offsets = [](const FlatLayout& layout) {
    const auto at = [&](ParamId id) { return layout.segment_of(id).offset; };
    return std::vector{at(0), at(1), at(2), at(3)};
  };
  const int64_t kOneBucket = 1 << 20;
  const FlatLayout cpu(model.blocks, {.whole = {3}, .bucket_bytes = kOneBucket});
  const FlatLayout gpu(model.blocks,
                       {.whole = {3}, .device = Device::kCuda, .bucket_bytes = kOneBucket});
  EXPECT_EQ(offsets(cpu), (std::vector<int64_t>{16, 1072, 1048, 0}));
  EXPECT_EQ(offsets(gpu), (std::vector<int64_t>{0, 1168, 1176, 1152}));
  EXPECT_NE(cpu.hash(), gpu.hash());
  EXPECT_EQ(gpu.buckets()[0].first_plain, 1168);
  EXPECT_EQ(gpu.elements(), 1536);
  std::vector<Range> extents;
  for (const Extent& extent : gpu.extents(gpu.buckets()[0].range)) {
    extents.push_back({extent.in_flat, extent.in_flat + extent.count});
  }
  EXPECT_EQ(extents, (std::vector<Range>{{0, 1025}, {1152, 1168}, {1168, 1173}, {1176, 1200}}));
  std::vector<int64_t> counts(4, 0);
  for (int rank = 0; rank < 3; ++rank) {
    for (const Extent& extent : gpu.extents(gpu.part(gpu.buckets()[0], rank))) {
      counts[extent.parameter] += extent.count;
    }
  }
  EXPECT_EQ(counts, (std::vector<int64_t>{1025, 5, 24, 16}));
  // 1,152 + 8 + 24 numbers in the first block.
  for (const auto& [bytes, buckets] : {std::pair{4 * 1184, 2}, {4 * 1184 + 4 * 16, 1}}) {
    const FlatLayout layout(model.blocks, {.device = Device::kCuda, .bucket_bytes = bytes});
    EXPECT_EQ(std::ssize(layout.buckets()), buckets);
  }
}

// State is sharded inside nodes of g ranks. The padding is still that of all ranks, which divide
// each shard further.
TEST(FlatLayout, FewerPartsThanRanks) {
  const TestModel model = mixed_model();
  const FlatLayout layout(model.blocks, {.whole = {8, 2}, .bucket_bytes = 8192});
  const FlatLayout fully(model.blocks, {.whole = {8}, .bucket_bytes = 8192});
  EXPECT_EQ(layout.elements(), fully.elements());
  for (const Bucket& bucket : layout.buckets()) {
    EXPECT_EQ(layout.part(bucket, 0).begin, bucket.range.begin);
    EXPECT_EQ(layout.part(bucket, 1).begin, layout.part(bucket, 0).end);
    EXPECT_EQ(layout.part(bucket, 1).end, bucket.range.end);
    EXPECT_EQ(layout.part(bucket, 0).count() % (4 * 128), 0);
    EXPECT_THROW(layout.part(bucket, 2), Error);
  }
  EXPECT_THROW(FlatLayout(model.blocks, {.whole = {8, 3}}), Error);
}

TEST(FlatLayout, OnlyOneKindOwnsThePadding) {
  TestModel model;
  model.block({{100, true}}).block({{100, false}});
  const FlatLayout layout(model.blocks, {.whole = {2}, .bucket_bytes = 1});
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
    const FlatLayout layout(model.blocks, {.whole = {ranks}, .bucket_bytes = 1 << 20});
    EXPECT_EQ(2 * (ranks - 1) * layout.elements() * 4 / ranks, bytes) << ranks;
  }
}

TEST(FlatLayout, SizesBeyond32Bits) {
  TestModel model;
  model.block({{int64_t{5} << 30, true}, {3, false}}).block({{int64_t{5} << 30, true}});
  const FlatLayout layout(model.blocks, {.whole = {3}, .bucket_bytes = 1 << 20});
  EXPECT_GT(layout.elements(), int64_t{10} << 30);
  EXPECT_EQ(layout.segment_of(2).offset % 384, 0);
  const auto extents = layout.extents(layout.part(layout.buckets().back(), 2));
  ASSERT_EQ(extents.size(), 1u);
  EXPECT_EQ(extents[0].parameter, 2);
  EXPECT_EQ(extents[0].in_parameter + extents[0].count, int64_t{5} << 30);
}

TEST(FlatLayout, HashSeesEveryDifference) {
  const FlatLayout::Options options{.whole = {2}, .bucket_bytes = 8192};
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
  TestModel frozen = mixed_model();
  frozen.parameters[3].frozen = true;
  EXPECT_NE(hash(frozen), reference);
  TestModel padded = mixed_model();
  padded.parameters[3].classes = true;  // no offset changes
  EXPECT_EQ(hash(padded), reference);
  EXPECT_NE(FlatLayout(padded.blocks, {.whole = {2}, .device = Device::kCuda, .bucket_bytes = 8192})
                .hash(),
            reference);
  TestModel own, shared;  // nothing else changes, as the parameter is a bucket by itself
  EXPECT_NE(hash(own.block({{64, true}})), hash(shared.block({{64, true, true}})));
  TestModel swapped = mixed_model();
  std::swap(swapped.parameters[11].name, swapped.parameters[12].name);
  EXPECT_NE(hash(swapped), reference);
  const TestModel same = mixed_model();
  EXPECT_NE(FlatLayout(same.blocks, {.whole = {3}, .bucket_bytes = 8192}).hash(), reference);
  EXPECT_NE(FlatLayout(same.blocks, {.whole = {2, 1}, .bucket_bytes = 8192}).hash(), reference);
  EXPECT_NE(FlatLayout(same.blocks, {.whole = {2}, .bucket_bytes = 64}).hash(), reference);
}

// Two parameters whose names have one hash would start with the same random numbers.
TEST(FlatLayout, RejectsNamesOfOneHash) {
  TestModel model;
  model.block({{4, true}, {4, true}});
  model.parameters[0].name = "costarring";
  model.parameters[1].name = "liquid";
  ASSERT_EQ(random_stream_of("costarring"), random_stream_of("liquid"));
  EXPECT_THROW(FlatLayout(model.blocks, {}), Error);
  model.parameters[1].name = "liquids";
  EXPECT_NO_THROW(FlatLayout(model.blocks, {}));
  // A piece's name counts, not the one of its stack.
  model.parameters[1].pieces = {{"costarring", Shape{4}}};
  EXPECT_THROW(FlatLayout(model.blocks, {}), Error);
}

TEST(FlatLayout, RejectsPiecesThatAreNotTheParameter) {
  TestModel model;
  model.block({{6, true}});
  model.parameters[0].pieces = {{"a", Shape{2}}, {"b", Shape{4}}};
  EXPECT_NO_THROW(FlatLayout(model.blocks, {}));
  model.parameters[0].pieces.pop_back();
  EXPECT_THROW(FlatLayout(model.blocks, {}), Error);
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
