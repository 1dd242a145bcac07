// The emulated mma and ldmatrix hold their operands where NVIDIA's CuTe says that a GPU does. The
// kernels that use them were written by the same people as the emulation, so without another source
// a mistake made in both would go unseen.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "src/device/ptx.cuh"
#include "src/kernels/launch.cuh"
#include "tests/simt/device_vector.h"

namespace tandem {
namespace {

using simt::DeviceVector;

struct Mode {
  int size, stride;
};

// A layout of CuTe: the place of value v of lane t. The first mode of each list varies fastest.
struct Layout {
  std::vector<Mode> lanes, values;

  int operator()(int t, int v) const {
    int place = 0;
    for (const auto& [modes, index] : {std::pair(&lanes, t), std::pair(&values, v)}) {
      int rest = index;
      for (const Mode& mode : *modes) {
        place += rest % mode.size * mode.stride;
        rest /= mode.size;
      }
    }
    return place;
  }
};

// From NVIDIA's CUTLASS 4.2.0 (pip: nvidia-cutlass). include/cute/atom/mma_traits_sm80.hpp,
// MMA_Traits<SM80_16x8x16_F32BF16BF16F32_TN>; fp16 has the same. Places are m + 16 k in A, n + 8 k
// in B, and m + 16 n in C.
const Layout kA = {{{4, 32}, {8, 1}}, {{2, 16}, {2, 8}, {2, 128}}};
const Layout kB = {{{4, 16}, {8, 1}}, {{2, 8}, {2, 64}}};
const Layout kC = {{{4, 32}, {8, 1}}, {{2, 16}, {2, 8}}};
// include/cute/atom/copy_traits_sm75.hpp, DstLayout of Copy_Traits<SM75_U32x4_LDSM_N> and of
// Copy_Traits<SM75_U16x8_LDSM_T>. Values and places are bits; the row of lane t begins at 128 t.
const Layout kLdsm = {{{32, 32}}, {{32, 1}, {4, 1024}}};
const Layout kLdsmTransposed = {{{4, 256}, {8, 16}}, {{16, 1}, {2, 128}, {4, 1024}}};

template <class T>
__global__ void mma_kernel(Global<const uint32_t> a, Global<const uint32_t> b, Global<float> d) {
  const int64_t lane = threadIdx.x;
  uint32_t of_a[4];
  float sums[4] = {};
  for (int i = 0; i < 4; ++i) {
    of_a[i] = a.load(4 * lane + i);
  }
  ptx::mma<T>(sums, of_a, b.load(2 * lane), b.load(2 * lane + 1));
  for (int i = 0; i < 4; ++i) {
    d.store(4 * lane + i, sums[i]);
  }
}

// The registers of all lanes: two elements in each, the first one in the lower half.
template <class T>
std::vector<uint32_t> registers(const std::vector<int>& matrix, const Layout& layout, int count) {
  std::vector<uint32_t> words;
  for (int i = 0; i < 32 * count; ++i) {
    uint32_t word = 0;
    for (int half = 0; half < 2; ++half) {
      const int element = matrix[layout(i / count, i % count * 2 + half)];
      word |= uint32_t{T(static_cast<float>(element)).bits} << 16 * half;
    }
    words.push_back(word);
  }
  return words;
}

// Numbers that both types, and the sums of their products, hold exactly.
std::vector<int> small_numbers(size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> numbers(-99, 99);
  std::vector<int> values(count);
  std::generate(values.begin(), values.end(), [&] { return numbers(engine); });
  return values;
}

template <class T>
void expect_cute_product() {
  const std::vector<int> a = small_numbers(16 * 16, 1), b = small_numbers(8 * 16, 2);
  const DeviceVector<uint32_t> on_a(registers<T>(a, kA, 4)), on_b(registers<T>(b, kB, 2));
  const DeviceVector<float> on_d(32 * 4);
  launch<mma_kernel<T>>(Cuda{nullptr}, 1, 32, 0, on_a.data(), on_b.data(), on_d.data());
  const std::vector<float> d = on_d.values();
  for (int i = 0; i < 32 * 4; ++i) {
    const int m = kC(i / 4, i % 4) % 16, n = kC(i / 4, i % 4) / 16;
    int expected = 0;
    for (int k = 0; k < 16; ++k) {
      expected += a[m + 16 * k] * b[n + 8 * k];
    }
    ASSERT_EQ(d[i], static_cast<float>(expected)) << "lane " << i / 4 << ", register " << i % 4;
  }
}

TEST(CuteLayouts, OfProducts) {
  expect_cute_product<Bf16>();
  expect_cute_product<Fp16>();
}

template <bool kTransposed>
__global__ void ldmatrix_kernel(Global<uint32_t> out) {
  struct Rows {
    alignas(16) Bf16 of[32 * 8];
  };
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = 0; i < 8; ++i) {
    shared<Rows>().of[lane * 8 + i].bits = static_cast<uint16_t>(lane * 8 + i);
  }
  __syncwarp();
  const Shared<Bf16> row(shared<Rows>().of + lane * 8);
  uint32_t r[4];
  if constexpr (kTransposed) {
    ptx::ldmatrix_transposed(r, row);
  } else {
    ptx::ldmatrix(r, row);
  }
  for (int i = 0; i < 4; ++i) {
    out.store(lane * 4 + i, r[i]);
  }
}

template <bool kTransposed>
void expect_cute_matrices(const Layout& layout) {
  const DeviceVector<uint32_t> out(32 * 4);
  launch<ldmatrix_kernel<kTransposed>>(Cuda{nullptr}, 1, 32, 0, out.data());
  const std::vector<uint32_t> r = out.values();
  for (int i = 0; i < 32 * 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      const int bit = layout(i / 4, i % 4 * 32 + half * 16);
      ASSERT_EQ(r[i] >> 16 * half & 0xffffu, static_cast<uint32_t>(bit / 16))
          << "lane " << i / 4 << ", register " << i % 4;
    }
  }
}

TEST(CuteLayouts, OfMatricesInSharedMemory) {
  expect_cute_matrices<false>(kLdsm);
  expect_cute_matrices<true>(kLdsmTransposed);
}

}  // namespace
}  // namespace tandem
