// The instructions for tiles in shared memory: what they compute, what is counted, and planted
// faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "src/kernels/mma.cuh"
#include "tests/simt/device_vector.h"
#include "tests/simt/settings.h"
#include "tests/simt/simt.h"

namespace tandem {
namespace {

using simt::DeviceVector;
using testing::HasSubstr;

std::vector<Bf16> random_values(size_t size, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<Bf16> values(size);
  std::generate(values.begin(), values.end(), [&] { return Bf16(normal(engine)); });
  return values;
}

// --- Products. ---

constexpr int kSize = 32;

template <bool kTransposed, bool kHeld>
__global__ void product_kernel(Global<const Bf16> a, Global<const Bf16> b, Global<float> c) {
  struct Tiles {
    mma::Tile<Bf16, kSize, kSize> a, b;
  };
  Tiles& tiles = shared<Tiles>();
  mma::load_async<kWarp>(mma::Rows<const Bf16>{a, kSize, kSize}, 0, tiles.a);
  mma::load_async<kWarp>(mma::Rows<const Bf16>{b, kSize, kSize}, 0, tiles.b);
  ptx::copies_commit();
  ptx::copies_wait<0>();
  __syncwarp();
  float sums[kSize / 16][kSize / 8][4] = {};
  if constexpr (kTransposed) {
    auto rows = mma::rows_of_a<kHeld, kSize / 16>(tiles.a, 0);
    rows.hold();
    mma::multiply_transposed(rows, tiles.b, sums);
  } else {  // A is the fragments of a product with the unit matrix
    float unit[kSize / 16][kSize / 8][4];
    for (int m = 0; m < kSize / 16; ++m) {
      for (int n = 0; n < kSize / 8; ++n) {
        for (int i = 0; i < 4; ++i) {
          unit[m][n][i] =
              float(tiles.a.at(m * 16 + mma::row_of(i), n * 8 + mma::column_of(i)).load(0));
        }
      }
    }
    uint32_t rounded[kSize / 16][kSize / 8][2];
    mma::round<Bf16>(unit, rounded);
    mma::add_product(rounded, tiles.b, sums);
  }
  for (int m = 0; m < kSize / 16; ++m) {
    for (int n = 0; n < kSize / 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        c.store((m * 16 + mma::row_of(i)) * kSize + n * 8 + mma::column_of(i), sums[m][n][i]);
      }
    }
  }
}

template <bool kTransposed, bool kHeld = false>
std::vector<float> product(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
  const DeviceVector<Bf16> on_a(a), on_b(b);
  const DeviceVector<float> c(kSize * kSize);
  launch<product_kernel<kTransposed, kHeld>>(Cuda{nullptr}, 1, kWarp, 0, on_a.data(), on_b.data(),
                                             c.data());
  return c.values();
}

// Terms and sums of one element, in f64: two instructions of 16 terms each.
struct Exact {
  double sum = 0, largest = 0;
};

template <bool kTransposed>
Exact exact(const std::vector<Bf16>& a, const std::vector<Bf16>& b, int i, int j) {
  Exact result;
  for (int k = 0; k < kSize; ++k) {
    const double term =
        double(a[i * kSize + k]) * double(b[kTransposed ? j * kSize + k : k * kSize + j]);
    result.sum += term;
    result.largest = std::max({result.largest, std::fabs(term), std::fabs(result.sum)});
  }
  return result;
}

// Rounded to nearest, each of the two instructions errs by half an ulp of its sum. Truncated, each
// half of an instruction errs by 9 * 2^-24 of its largest term and an ulp of its sum.
template <bool kTransposed>
void expect_products(const std::vector<float>& c, const std::vector<Bf16>& a,
                     const std::vector<Bf16>& b, double tolerance) {
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) {
      const Exact expected = exact<kTransposed>(a, b, i, j);
      ASSERT_NEAR(c[i * kSize + j], expected.sum, tolerance * expected.largest) << i << ", " << j;
    }
  }
}

TEST(TensorCore, MultipliesTiles) {
  const std::vector<Bf16> a = random_values(kSize * kSize, 1), b = random_values(kSize * kSize, 2);
  simt::counters() = {};
  expect_products<true>(product<true>(a, b), a, b, 2 * 0x1p-24);
  EXPECT_EQ(simt::counters().products, (kSize / 16) * (kSize / 8) * (kSize / 16));
  EXPECT_EQ(simt::counters().bank_conflicts, 0);
  EXPECT_EQ((product<true, true>(a, b)), product<true>(a, b));
  expect_products<false>(product<false>(a, b), a, b, 2 * 0x1p-24);
}

TEST(TensorCore, TruncatesWithinItsBound) {
  const std::vector<Bf16> a = random_values(kSize * kSize, 3), b = random_values(kSize * kSize, 4);
  const std::vector<float> nearest = product<true>(a, b);
  simt::set_mma_rounding("truncate");
  const std::vector<float> truncated = product<true>(a, b);
  simt::set_mma_rounding("nearest");
  EXPECT_NE(nearest, truncated);
  expect_products<true>(truncated, a, b, 4 * (9 * 0x1p-24 + 0x1p-23));
}

// --- Bank conflicts. ---

__global__ void column_kernel(int stride, Global<float> out) {
  struct Values {
    float of[32 * 33];
  };
  const Shared<float> values(shared<Values>().of);
  const int lane = static_cast<int>(threadIdx.x);
  values.store(lane * stride, 1.0f);
  __syncwarp();
  out.store(lane, values.load(lane * stride));
}

int64_t conflicts_of_stride(int stride) {
  const DeviceVector<float> out(32);
  simt::counters() = {};
  launch<column_kernel>(Cuda{nullptr}, 1, 32, 0, stride, out.data());
  out.values();
  return simt::counters().bank_conflicts;
}

TEST(BankConflicts, AreCounted) {
  EXPECT_EQ(conflicts_of_stride(1), 0);
  EXPECT_EQ(conflicts_of_stride(2), 2 * 1);
  EXPECT_EQ(conflicts_of_stride(32), 2 * 31);
  EXPECT_EQ(conflicts_of_stride(33), 0);
}

template <int kStride>
__global__ void matrix_kernel(Global<uint32_t> out) {
  struct Values {
    alignas(16) Bf16 of[16 * kStride];
  };
  const Shared<Bf16> values(shared<Values>().of);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 16 * kStride; i += 32) {
    shared<Values>().of[i].bits = static_cast<uint16_t>(i);
  }
  __syncwarp();
  uint32_t r[4];
  ptx::ldmatrix(r, values + (lane % 16 * kStride + lane / 16 * 8));
  for (int i = 0; i < 4; ++i) {
    out.store(lane * 4 + i, r[i]);
  }
}

// Rows of 64 elements have all their beginnings in the same banks.
TEST(BankConflicts, OfMatrices) {
  const DeviceVector<uint32_t> out(32 * 4);
  simt::counters() = {};
  launch<matrix_kernel<72>>(Cuda{nullptr}, 1, 32, 0, out.data());
  const std::vector<uint32_t> r = out.values();
  EXPECT_EQ(simt::counters().bank_conflicts, 0);
  // Lane 5 has row 1, columns 2 and 3, of each matrix.
  EXPECT_EQ(r[5 * 4], 74u | 75u << 16);
  EXPECT_EQ(r[5 * 4 + 1], (74u + 8 * 72) | (75u + 8 * 72) << 16);
  EXPECT_EQ(r[5 * 4 + 2], (74u + 8) | (75u + 8) << 16);
  launch<matrix_kernel<64>>(Cuda{nullptr}, 1, 32, 0, out.data());
  out.values();
  EXPECT_EQ(simt::counters().bank_conflicts, 4 * 7);
}

// --- Asynchronous copies. ---

enum class Mistake { kNone, kNoWait, kNoBarrier, kStageInUse, kNoCommit };

// Copies 64 numbers in two stages of 32, and stores their sums with the neighbour's.
template <Mistake kMistake>
__global__ void copies_kernel(Global<const float> x, Global<float> out) {
  struct Stages {
    float of[2][64];
  };
  Stages& stages = shared<Stages>();
  const int thread = static_cast<int>(threadIdx.x);
  const auto load = [&](int i) {
    ptx::copy_async<4>(Shared(&stages.of[kMistake == Mistake::kStageInUse ? 0 : i % 2][thread]), x,
                       i * 64 + thread, true);
    if constexpr (kMistake != Mistake::kNoCommit) {
      ptx::copies_commit();
    }
  };
  load(0);
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    if constexpr (kMistake != Mistake::kNoWait) {
      ptx::copies_wait<0>();
    }
    if constexpr (kMistake != Mistake::kNoBarrier) {
      __syncthreads();
    }
    if (i < 2) {
      load(i + 1);
    }
    sum += Shared(stages.of[kMistake == Mistake::kStageInUse ? 0 : i % 2]).load(63 - thread);
  }
  out.store(thread, sum);
}

template <Mistake kMistake>
std::string disagreement_of_copies() {
  std::vector<float> x(3 * 64);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i * i);
  }
  const DeviceVector<float> in(x);
  return simt::disagreement([&] {
    const DeviceVector<float> out(64);
    launch<copies_kernel<kMistake>>(Cuda{nullptr}, 1, 64, 0, in.data(), out.data());
    return simt::bytes_of(out.values());
  });
}

TEST(AsynchronousCopies, ArriveAtTheWait) {
  EXPECT_EQ(disagreement_of_copies<Mistake::kNone>(), "");
}

TEST(AsynchronousCopies, PlantedFaults) {
  EXPECT_EQ(disagreement_of_copies<Mistake::kNoWait>(), "copies=at-once");
  EXPECT_EQ(disagreement_of_copies<Mistake::kNoCommit>(), "copies=at-once");
  EXPECT_EQ(disagreement_of_copies<Mistake::kNoBarrier>(), "threads=backward");
  EXPECT_EQ(disagreement_of_copies<Mistake::kStageInUse>(), "threads=backward");
}

__global__ void invalid_copy_kernel(Global<const float> x, Global<float> out, bool valid) {
  struct Values {
    alignas(16) float of[32];
  };
  Values& values = shared<Values>();
  ptx::copy_async<4>(Shared(&values.of[threadIdx.x]), x, int64_t{threadIdx.x} + 1000, valid);
  ptx::copies_commit();
  ptx::copies_wait<0>();
  out.store(threadIdx.x, values.of[threadIdx.x]);
}

TEST(AsynchronousCopies, WriteZerosAndReadNothingWhereInvalid) {
  const DeviceVector<float> x(std::vector<float>(32, 5.0f)), out(32);
  launch<invalid_copy_kernel>(Cuda{nullptr}, 1, 32, 0, x.data(), out.data(), false);
  EXPECT_EQ(out.values(), std::vector<float>(32, 0.0f));
  EXPECT_THAT(simt::failure_of([&] {
                launch<invalid_copy_kernel>(Cuda{nullptr}, 1, 32, 0, x.data(), out.data(), true);
              }),
              HasSubstr("out of bounds load"));
}

// --- Misuse. ---

__global__ void misuse_kernel(int mistake) {
  struct Values {
    alignas(16) Bf16 of[8 * 16];
  };
  const Shared<Bf16> values(shared<Values>().of);
  uint32_t r[4];
  switch (mistake) {
    case 0:
      return ptx::ldmatrix(r, values + 1);
    case 1:
      return ptx::ldmatrix(r, values + 8 * 16);
    case 2:
      return values.store(8 * 16, Bf16(0.0f));
    case 3:
      return values.store_as<uint32_t>(1, 0u);
    default:
      if (threadIdx.x < 16) {
        ptx::ldmatrix(r, values);
      }
  }
}

std::string failure_of_misuse(int mistake) {
  return simt::failure_of([=] { launch<misuse_kernel>(Cuda{nullptr}, 1, 32, 0, mistake); });
}

TEST(TensorCore, MisuseIsReported) {
  EXPECT_THAT(failure_of_misuse(0), HasSubstr("ldmatrix of an unaligned row"));
  EXPECT_THAT(failure_of_misuse(1), HasSubstr("ldmatrix outside shared memory"));
  EXPECT_THAT(failure_of_misuse(2), HasSubstr("access outside shared memory"));
  EXPECT_THAT(failure_of_misuse(3), HasSubstr("unaligned access of shared memory"));
  EXPECT_THAT(failure_of_misuse(4), HasSubstr("divergent barrier"));
}

}  // namespace
}  // namespace tandem
