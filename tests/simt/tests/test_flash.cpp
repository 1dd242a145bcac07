// What the attention kernels for tensor cores do on a GPU: instructions, bytes, bank conflicts, and
// the same bits under every schedule; also how a warp finds the end of a document.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "layers/attention/attention_sizes.cuh"
#include "layers/linear/linear.h"
#include "tests/simt/device_vector.h"
#include "tests/simt/simt.h"
#include "tests/support/harness.h"

namespace tandem {
namespace {

using simt::DeviceVector;

constexpr int64_t kHeads = 2, kKvHeads = 1;

// Where the document of each token of a sequence starts.
using Starts = std::vector<int64_t>;

// Documents of these lengths are repeated to fill the sequence.
Starts starts_of(int64_t length, const std::vector<int64_t>& documents) {
  Starts starts;
  for (size_t i = 0; std::ssize(starts) < length; i = (i + 1) % documents.size()) {
    starts.insert(starts.end(), documents[i], std::ssize(starts));
  }
  starts.resize(length);
  return starts;
}

// One sequence of random numbers, and room for all results.
struct Attention {
  int64_t length, width;
  Starts starts = {};  // empty: one document
  int64_t window = 0;  // keys that a query sees at most; 0: all
  DeviceVector<Bf16> qkv = random(length * (kHeads + 2 * kKvHeads) * width);
  DeviceVector<Bf16> dy = random(length * kHeads * width);
  DeviceVector<Bf16> y = DeviceVector<Bf16>(length * kHeads * width);
  DeviceVector<Bf16> dqkv = DeviceVector<Bf16>(length * (kHeads + 2 * kKvHeads) * width);
  DeviceVector<float> log_sum = DeviceVector<float>(kHeads * length);
  DeviceVector<float> delta = DeviceVector<float>(kHeads * length);
  int64_t row = (kHeads + 2 * kKvHeads) * width;
  int64_t chunks = kernels::attention_row_chunks(Device::kCuda, DType::kBf16, 1, length, width);
  DeviceVector<float> row_sums = DeviceVector<float>(chunks * row);

  static DeviceVector<Bf16> random(int64_t size) {
    std::mt19937 engine(7);
    std::normal_distribution<float> normal;
    std::vector<Bf16> values(size);
    std::generate(values.begin(), values.end(), [&] { return Bf16(normal(engine)); });
    return DeviceVector<Bf16>(values);
  }
  AttentionSizes sizes{{kHeads, kKvHeads, width}, 1, length};
  DeviceVector<int32_t> places = DeviceVector<int32_t>([this] {
    std::vector<int32_t> values(starts.size());
    for (size_t t = 0; t < starts.size(); ++t) {
      values[t] = static_cast<int32_t>(t - starts[t]);
    }
    return values;
  }());
  DeviceVector<int32_t> limited = DeviceVector<int32_t>(length);
  // Without documents and window the kernels get none.
  const int32_t* positions() const {
    const int32_t* all = starts.empty() ? nullptr : places.data();
    if (window > 0) {
      kernels::limit_to_window(Cuda{nullptr}, all, limited.data(), sizes, window);
    }
    return window > 0 ? limited.data() : all;
  }
  int64_t first_seen(int64_t query) const {
    const int64_t start = starts.empty() ? 0 : starts[query];
    return window > 0 ? std::max(start, query - window + 1) : start;
  }

  std::vector<Bf16> forward() const {
    kernels::attention_forward(Cuda{nullptr}, qkv.data(), positions(), y.data(), log_sum.data(),
                               sizes, static_cast<float*>(nullptr));
    return y.values();
  }
  std::vector<Bf16> backward(float* sums = nullptr) const {
    kernels::attention_backward(Cuda{nullptr}, dy.data(), qkv.data(), positions(), y.data(),
                                log_sum.data(), dqkv.data(), 0.0f, sizes, delta.data(), sums);
    return dqkv.values();
  }
};

// Pairs of 16 rows of a warp's tile with 8 streamed rows, where the warp computes scores: of tiles
// of `streamed` rows with a position that one of the warp's `owned` rows sees (queries), or is seen
// by (keys).
int64_t score_fragments(const Attention& attention, int64_t block, int64_t owned, int64_t streamed,
                        bool rows_are_queries) {
  const int64_t length = attention.length;
  int64_t fragments = 0;
  for (int64_t first = 0; first < length; first += block) {
    for (int64_t row = first; row < first + block; row += owned) {
      const int64_t begin = rows_are_queries ? 0 : first;
      const int64_t end = rows_are_queries ? std::min(first + block, length) : length;
      for (int64_t at = begin; at < end; at += streamed) {
        const bool seen = rows_are_queries
                              ? at < row + owned &&
                                    at + streamed > attention.first_seen(std::min(row, length - 1))
                              : at + streamed > row && attention.first_seen(at) < row + owned;
        fragments += seen ? (owned / 16) * (streamed / 8) : 0;
      }
    }
  }
  return fragments;
}

struct Rows {
  int64_t forward_queries = 32, dq_queries, dkv_keys;  // of a warp
  int64_t dq_streamed;                                 // at once
};

Rows rows_of(int64_t width) {
  return {.dq_queries = width == 128 ? 16 : 32,
          .dkv_keys = width == 64 ? 32 : 16,
          .dq_streamed = width == 96 ? 32 : 16};
}

// Documents for which tests run: none, and some with borders inside of tiles, at their bounds, and
// beside them.
std::vector<Starts> documents_of(int64_t length) {
  return {{},
          starts_of(length, {length}),
          starts_of(length, {64}),
          starts_of(length, {63, 34, 31}),
          starts_of(length, {3}),
          starts_of(length, {130, 1, 1, 1})};
}

// Each 16 x 8 scores take width / 16 instructions for each product, of which there are `products`.
void expect_instructions(const Attention& attention) {
  SCOPED_TRACE(str("width ", attention.width, ", length ", attention.length, ", window ",
                   attention.window, ", the last document starts at ",
                   attention.starts.empty() ? 0 : attention.starts.back()));
  const auto [forward_queries, dq_queries, dkv_keys, dq_streamed] = rows_of(attention.width);
  const int64_t each = kHeads * (attention.width / 16);
  simt::counters() = {};
  attention.forward();
  EXPECT_EQ(simt::counters().products,
            2 * each * score_fragments(attention, 4 * forward_queries, forward_queries, 64, true));
  simt::counters() = {};
  attention.backward();
  const int64_t dq = score_fragments(attention, 4 * dq_queries, dq_queries, dq_streamed, true);
  const int64_t dkv = score_fragments(attention, 4 * dkv_keys, dkv_keys, 32, false);
  EXPECT_EQ(simt::counters().products, each * (3 * dq + 4 * dkv));
}

TEST(FlashAttention, InstructionsAreThoseOfSeenTiles) {
  for (int64_t width : {64, 96, 128}) {
    for (int64_t length : {100, 300}) {
      for (const Starts& starts : documents_of(length)) {
        for (int64_t window : {0, 1, 70}) {
          expect_instructions({length, width, starts, window});
        }
      }
    }
  }
}

TEST(FlashAttention, NoBankConflicts) {
  for (int64_t width : {64, 96, 128}) {
    const Attention attention{200, width, starts_of(200, {30, 51})};
    simt::counters() = {};
    attention.forward();
    EXPECT_EQ(simt::counters().bank_conflicts, 0) << "forward, width " << width;
    attention.backward(attention.row_sums.data());
    EXPECT_EQ(simt::counters().bank_conflicts, 0) << "backward, width " << width;
  }
}

// A block reads its own rows and streams those that it sees, and writes its rows once. Statistics
// and positions are 4 bytes a row.
void expect_bytes(int64_t width, int64_t document) {
  SCOPED_TRACE(str("width ", width, ", documents of ", document));
  constexpr int64_t kLength = 512;
  const Attention attention{kLength, width,
                            document < kLength ? starts_of(kLength, {document}) : Starts()};
  const Rows rows = rows_of(width);
  const int64_t row = width * 2;
  int64_t forward = 0, backward = 0;
  for (int64_t first = 0; first < kLength; first += 4 * rows.forward_queries) {
    const int64_t own = 4 * rows.forward_queries;
    forward += kHeads * (2 * own * row + own * 4 + 2 * (first % document + own) * row);
  }
  backward += kHeads * kLength * row;  // y, for delta
  for (int64_t first = 0; first < kLength; first += 4 * rows.dq_queries) {
    const int64_t own = 4 * rows.dq_queries;
    backward += kHeads * (3 * own * row + 2 * own * 4 + 2 * (first % document + own) * row);
  }
  for (int64_t first = 0; first < kLength; first += 4 * rows.dkv_keys) {
    const int64_t own = 4 * rows.dkv_keys;
    backward += kKvHeads * 4 * own * row +
                kHeads * std::min(kLength - first, document - first % document) * (2 * row + 2 * 4);
  }
  simt::counters() = {};
  attention.forward();
  EXPECT_LE(32 * (simt::counters().sectors_read + simt::counters().sectors_written),
            1.1 * static_cast<double>(forward))
      << "forward, width " << width;
  simt::counters() = {};
  attention.backward();
  EXPECT_LE(32 * (simt::counters().sectors_read + simt::counters().sectors_written),
            1.1 * static_cast<double>(backward))
      << "backward, width " << width;
}

TEST(FlashAttention, Bytes) {
  simt::set_thread_schedule("forward");  // for which sectors are counted exactly
  for (int64_t width : {64, 96, 128}) {
    expect_bytes(width, 512);
    expect_bytes(width, 384);
  }
}

TEST(FlashAttention, TheSameBitsUnderEverySchedule) {
  for (int64_t width : {64, 96, 128}) {
    for (const Starts& starts : {Starts(), starts_of(140, {20, 46})}) {
      const Attention attention{140, width, starts};
      EXPECT_EQ(simt::disagreement([&] { return simt::bytes_of(attention.forward()); }), "");
      EXPECT_EQ(simt::disagreement([&] { return simt::bytes_of(attention.backward()); }), "");
      EXPECT_EQ(simt::disagreement([&] {
                  attention.backward(attention.row_sums.data());
                  return simt::bytes_of(attention.row_sums.values());
                }),
                "");
    }
  }
}

// Of the gradient as it is stored, in chunks of 64 rows; the last one may be short. A sum has at
// most 64 roundings.
TEST(FlashAttention, RowSumsAreThoseOfTheGradient) {
  for (int64_t width : {64, 96, 128}) {
    for (int64_t length : {1, 63, 64, 65, 127, 128, 129, 300}) {
      SCOPED_TRACE(str("width ", width, ", length ", length));
      const Attention attention{length, width, starts_of(length, {20, 50})};
      attention.forward();
      const std::vector<Bf16> alone = attention.backward();
      const std::vector<Bf16> dqkv = attention.backward(attention.row_sums.data());
      EXPECT_EQ(simt::bytes_of(dqkv), simt::bytes_of(alone));
      const std::vector<float> sums = attention.row_sums.values();
      for (int64_t column = 0; column < attention.row; ++column) {
        for (int64_t chunk = 0; chunk < attention.chunks; ++chunk) {
          double sum = 0, size = 0;
          for (int64_t at = chunk * 64; at < std::min(length, chunk * 64 + 64); ++at) {
            const auto value = static_cast<double>(dqkv[at * attention.row + column]);
            sum += value;
            size += std::abs(value);
          }
          ASSERT_NEAR(sums[chunk * attention.row + column], sum, 64 * 0x1p-24 * size);
        }
      }
    }
  }
}

constexpr int kKeyStep = 61;

// A block of one warp for every kKeyStep-th key.
__global__ void ends_kernel(AttentionSizes sizes, Global<const int32_t> positions,
                            Global<int32_t> ends) {
  const int key = static_cast<int>(blockIdx.x) * kKeyStep;
  ends.store(blockIdx.x, attention_sizes::Documents<true>(positions, sizes, 0).end(key));
}

TEST(FlashAttention, EndsOfDocuments) {
  for (int64_t length : {1, 2, 33, 34, 1000, 1057, 32768, 40000}) {
    for (int64_t document : {int64_t{1}, int64_t{61}, int64_t{1000}, int64_t{1025}, length}) {
      SCOPED_TRACE(str("length ", length, ", documents of ", document));
      std::vector<int32_t> positions(length);
      for (int64_t t = 0; t < length; ++t) {
        positions[t] = static_cast<int32_t>(t % document);
      }
      const int64_t count = (length + kKeyStep - 1) / kKeyStep;
      const DeviceVector<int32_t> given(positions), ends(count);
      launch<ends_kernel>(Cuda{nullptr}, static_cast<unsigned>(count), kWarp, 0,
                          AttentionSizes{{}, 1, length}, given.data(), ends.data());
      const std::vector<int32_t> found = ends.values();
      for (int64_t i = 0; i < count; ++i) {
        const int64_t key = i * kKeyStep;
        ASSERT_EQ(found[i], std::min(length, (key / document + 1) * document)) << "key " << key;
      }
    }
  }
}

// The gradient of a bias before attention needs no pass of its own over the gradient of qkv.
TEST(FlashAttention, TakesTheSumsOfTheBiasBeforeIt) {
  const HeadLayout layout{.heads = 2, .kv_heads = 2, .width = 64};
  Parameter weight{.name = "w", .shape = {layout.row(), 16}, .id = 0};
  Parameter bias{.name = "b", .shape = {layout.row()}, .id = 1};
  const auto random = [](const Shape& shape, DType dtype) {
    return testing::to_device(
        testing::rounded_to(testing::random_tensor(shape, DType::kF32, 1), dtype), Device::kCuda);
  };
  for (Parameter* parameter : {&weight, &bias}) {
    parameter->value = random(parameter->shape, DType::kBf16);
    parameter->grad = random(parameter->shape, DType::kF32);
  }
  testing::TestContext test(Device::kCuda);
  const Variable x(random({1, 100, 16}, DType::kBf16));
  const Variable y = attention(test.context, linear(test.context, x, weight, &bias), layout);
  std::string launches;
  simt::launch_observer() = [&](const std::string& text) { launches += text + "\n"; };
  test.tape.backward(test.context, y, random(y.shape(), DType::kBf16));
  simt::launch_observer() = nullptr;
  EXPECT_TRUE(bias.grad_written);
  EXPECT_NE(launches.find("add_partial_rows_kernel"), std::string::npos) << launches;
  EXPECT_EQ(launches.find("sum_rows_kernel"), std::string::npos) << launches;
}

}  // namespace
}  // namespace tandem
