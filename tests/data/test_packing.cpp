#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <random>
#include <thread>

#include "src/core/error.h"
#include "src/data/packing.h"
#include "src/device/device.h"

namespace tandem {

// For messages of tests: "5@20", "5@20 cut".
static void PrintTo(const PackedPiece& piece, std::ostream* out) {
  *out << piece.length << "@" << piece.start << (piece.is_cut ? " cut" : "");
}

namespace {

using Window = std::vector<PackedPiece>;

std::vector<int64_t> starts_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> starts = {0};
  std::partial_sum(lengths.begin(), lengths.end(), std::back_inserter(starts));
  return starts;
}

std::vector<Window> windows_of(const Packing& packing) {
  std::vector<Window> windows;
  for (int64_t i = 0; i < packing.windows(); ++i) {
    windows.push_back(packing.window(i));
  }
  return windows;
}

std::vector<Window> packed(const std::vector<int64_t>& lengths, const Packing::Options& options) {
  return windows_of(Packing(starts_of(lengths), options));
}

std::vector<int64_t> random_lengths(uint32_t seed, int64_t count, int64_t longest) {
  std::mt19937 random(seed);
  std::vector<int64_t> lengths(static_cast<size_t>(count));
  std::ranges::generate(
      lengths, [&] { return 1 + static_cast<int64_t>(random()) % longest % (1 + random() % 50); });
  return lengths;
}

TEST(Packing, TheLargestPieceThatFitsIsNext) {
  for (const bool cuts : {true, false}) {
    EXPECT_EQ(packed({3, 8, 2, 5, 7}, {.context = 9, .cuts = cuts}),
              (std::vector<Window>{{{8, 3}, {2, 11}}, {{7, 18}, {3, 0}}, {{5, 13}}}));
  }
}

TEST(Packing, OfEquallyLongPiecesTheLastIsNext) {
  EXPECT_EQ(packed({4, 4, 4}, {.context = 9}),
            (std::vector<Window>{{{4, 8}, {4, 4}, {2, 0, true}}, {{2, 2}}}));
  EXPECT_EQ(packed({4, 4, 4}, {.context = 9, .cuts = false}),
            (std::vector<Window>{{{4, 8}, {4, 4}}, {{4, 0}}}));
}

TEST(Packing, WhatIsCutOffIsAPieceLikeOthers) {
  // The rest comes after pieces of its length that begin later.
  EXPECT_EQ(packed({6, 9, 5, 5}, {.context = 9}),
            (std::vector<Window>{{{9, 6}, {1, 0, true}}, {{5, 20}, {5, 15}}, {{5, 1}}}));
  // A document may be cut several times.
  EXPECT_EQ(packed({9, 9, 9}, {.context = 9}),
            (std::vector<Window>{{{9, 18}, {1, 9, true}}, {{9, 0}, {1, 10, true}}, {{7, 11}}}));
}

TEST(Packing, LongDocumentsFillTheFirstWindows) {
  // A window has 4 tokens, and so has the rest of the last document.
  EXPECT_EQ(packed({9, 4, 5, 8}, {.context = 3}), (std::vector<Window>{{{4, 0, true}},
                                                                       {{4, 4, true}},
                                                                       {{4, 13, true}},
                                                                       {{4, 18, true}},
                                                                       {{4, 22}},
                                                                       {{4, 9}},
                                                                       {{1, 17}, {1, 8}}}));
  EXPECT_EQ(packed({9, 4, 5, 8}, {.context = 3, .cuts = false}),
            (std::vector<Window>{{{4, 22}}, {{4, 14}}, {{4, 9}}, {{4, 5}}}));
}

TEST(Packing, SmallestTexts) {
  for (const bool cuts : {true, false}) {
    EXPECT_EQ(packed({}, {.context = 1, .seed = 3, .cuts = cuts}), std::vector<Window>{});
    EXPECT_EQ(packed({1}, {.context = 1, .seed = 3, .cuts = cuts}),
              (std::vector<Window>{{{1, 0}}}));
  }
  EXPECT_THROW(Packing({0, 5}, {.context = 4}).window(1), Error);
  EXPECT_THROW(Packing({0, 5}, {.context = 0}), Error);
}

TEST(Packing, APoolHas1024Documents) {
  for (const int64_t documents : {1023, 1024, 1025, 2048, 2049}) {
    const std::vector<int64_t> lengths(static_cast<size_t>(documents), 1);
    std::vector<Window> expected;
    for (int64_t first = 0; first < documents; first += 1024) {
      Window& window = expected.emplace_back();
      for (int64_t i = std::min(first + 1024, documents); i-- > first;) {
        window.push_back({1, i});
      }
    }
    EXPECT_EQ(packed(lengths, {.context = 5000}), expected) << documents;
  }
}

// Each token stands in one window, in a piece that lies within one document. Without cuts documents
// lose what is too long for a window, and nothing else.
TEST(Packing, EachTokenStandsInOneWindow) {
  for (const uint32_t list : {1u, 2u, 3u}) {
    for (const int64_t context : {1, 2, 7, 64}) {
      for (const bool cuts : {true, false}) {
        const auto starts = starts_of(random_lengths(list, 20 * context, 100));
        std::vector<int> seen(static_cast<size_t>(starts.back()));
        const Packing packing(starts, {.context = context, .seed = list, .cuts = cuts});
        for (const Window& window : windows_of(packing)) {
          int64_t tokens = 0;
          for (const auto& [length, start, is_cut] : window) {
            ASSERT_GT(length, 0);
            const int64_t end = *std::ranges::upper_bound(starts, start);
            ASSERT_EQ(start + length < end, is_cut);
            ASSERT_LE(start + length, end);
            std::for_each_n(seen.begin() + start, length, [](int& count) { ++count; });
            tokens += length;
          }
          ASSERT_TRUE(tokens > 0 && tokens <= context + 1);
        }
        for (size_t i = 1; i < starts.size(); ++i) {
          for (int64_t at = starts[i - 1]; at < starts[i]; ++at) {
            ASSERT_EQ(seen[at], cuts || at >= starts[i] - context - 1 ? 1 : 0);
          }
        }
      }
    }
  }
}

// As many documents as Alpaca's 52,002 instructions, exponentially long, 100 tokens on average. The
// last window of a pool is half empty on average: 0.005 of its hundred windows.
TEST(Packing, ShortDocumentsFillWindowsWithoutCuts) {
  std::mt19937 random(1);
  std::vector<int64_t> lengths(52002);
  std::ranges::generate(lengths, [&] {
    return std::lround(std::ceil(-100 * std::log((1.0 + static_cast<double>(random())) / 0x1p32)));
  });
  const Packing packing(starts_of(lengths), {.context = 1024, .seed = 1, .cuts = false});
  EXPECT_EQ(packing.cuts(), 0);
  EXPECT_LE(static_cast<double>(packing.padding()),
            0.01 * static_cast<double>(packing.windows() * 1025));
}

TEST(Packing, ASeedMixesTheDocumentsOfPools) {
  const std::vector<int64_t> lengths(5000, 1);
  const auto pools = [&](std::optional<uint64_t> seed) {
    return packed(lengths, {.context = 1023, .seed = seed});
  };
  EXPECT_EQ(pools(7), pools(7));
  EXPECT_NE(pools(7), pools(8));
  for (const uint64_t seed : {7, 8}) {
    int64_t moved = 0;
    for (int64_t pool = 0; const Window& window : pools(seed)) {
      moved += std::ranges::count_if(window,
                                     [&](PackedPiece piece) { return piece.start / 1024 != pool; });
      ++pool;
    }
    // By chance a fifth of the documents stays in its pool.
    EXPECT_GT(moved, 3500);
  }
}

TEST(Packing, ThreadsDoNotMatter) {
  const auto starts = starts_of(random_lengths(9, 4000, 100));
  const Packing::Options options{.context = 64, .seed = 1};
  const int before = cpu_threads();
  set_cpu_threads(1);
  const auto expected = windows_of(Packing(starts, options));
  set_cpu_threads(3);
  const Packing packing(starts, options);
  set_cpu_threads(before);
  std::vector<std::vector<Window>> found(3);
  {
    std::vector<std::jthread> threads;
    for (auto& windows : found) {
      threads.emplace_back([&] { windows = windows_of(packing); });
    }
  }
  for (const auto& windows : found) {
    EXPECT_EQ(windows, expected);
  }
}

}  // namespace
}  // namespace tandem
