// What norms and the residual addition move, at 4,096 rows of 768, in sectors of 32 bytes.
#include "layers/norm/norm.h"
#include "src/kernels/elementwise.h"
#include "tests/simt/simt.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

constexpr int64_t kRows = 4096, kWidth = 768;
constexpr int64_t kElements = kRows * kWidth;

// The floor is that each array crosses the memory's border once: rows of T, two f32 numbers a row,
// and for each block one read of a parameter or one write of a sum.
struct Floor {
  int64_t arrays, numbers, blocks, parameters, sums;

  double bytes(int64_t element) const {
    return static_cast<double>(arrays * kElements * element + numbers * kRows * 4 +
                               blocks * kWidth * (parameters * element + sums * 4));
  }
};

class NormBytes : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override { simt::set_thread_schedule("forward"); }

  // Uninitialised: the values do not matter.
  template <class T>
  T* memory(int64_t elements) {
    kept_.push_back(test_.context.workspace({elements}, dtype_of<T>));
    return kept_.back().template data<T>();
  }

  // `run` is called with a null pointer of the tested type and with its device.
  template <class F>
  void check(const Floor& floor, F run) {
    on_float(GetParam(), [&]<class T>() {
      if constexpr (!std::is_same_v<T, double>) {
        test_.stream.synchronize();
        simt::counters() = {};
        run(static_cast<T*>(nullptr), Cuda{test_.stream.handle()});
        test_.stream.synchronize();
        const simt::Counters moved = simt::counters();
        const auto bytes = static_cast<double>(32 * (moved.sectors_read + moved.sectors_written));
        EXPECT_EQ(moved.launches, 1);
        EXPECT_LE(bytes, 1.05 * floor.bytes(sizeof(T)));
        EXPECT_GE(bytes, floor.bytes(sizeof(T)));
        // Rows are moved in 16 bytes at a time; numbers and sums need not be.
        const int64_t sums = 4 * floor.blocks * kWidth * floor.sums;
        EXPECT_LE(32.0 * static_cast<double>(moved.narrow_sectors),
                  static_cast<double>(sums) + 0.05 * floor.bytes(sizeof(T)));
      }
    });
  }

  TestContext test_{Device::kCuda};
  std::vector<Tensor> kept_;
};

// Backward adds to dx, and sums the gradients of gain, bias and the bias before the norm.
TEST_P(NormBytes, BackwardWithResidualAndBiasGradient) {
  const int64_t blocks = kernels::norm_chunks(Device::kCuda, kRows);
  check({.arrays = 4, .numbers = 2, .blocks = blocks, .parameters = 1, .sums = 3},
        [&]<class T>(T*, Cuda device) {
          const kernels::NormSums<float> sums{memory<float>(blocks * kWidth),
                                              memory<float>(blocks * kWidth),
                                              memory<float>(blocks * kWidth)};
          kernels::norm_backward<T>(device, memory<T>(kElements), memory<T>(kElements),
                                    memory<T>(kWidth), memory<float>(kRows), memory<float>(kRows),
                                    memory<T>(kElements), 1, sums, kRows, kWidth);
        });
}

constexpr int64_t kForwardBlocks = 512;  // a warp has a row of 16 bits; fewer blocks would do, too

TEST_P(NormBytes, Forward) {
  check({.arrays = 2, .numbers = 2, .blocks = kForwardBlocks, .parameters = 2, .sums = 0},
        [&]<class T>(T*, Cuda device) {
          kernels::norm_forward<T>(device, memory<T>(kElements), nullptr, memory<T>(kWidth),
                                   memory<T>(kWidth), nullptr, memory<T>(kElements),
                                   memory<float>(kRows), memory<float>(kRows), 1e-5f, kRows,
                                   kWidth);
        });
}

TEST_P(NormBytes, ForwardWithResidual) {
  check({.arrays = 4, .numbers = 2, .blocks = kForwardBlocks, .parameters = 2, .sums = 0},
        [&]<class T>(T*, Cuda device) {
          T* branch = memory<T>(kElements);
          kernels::norm_forward<T>(device, memory<T>(kElements), branch, memory<T>(kWidth),
                                   memory<T>(kWidth), branch, memory<T>(kElements),
                                   memory<float>(kRows), memory<float>(kRows), 1e-5f, kRows,
                                   kWidth);
        });
}

TEST_P(NormBytes, Add) {
  check({.arrays = 3, .numbers = 0, .blocks = 0, .parameters = 0, .sums = 0},
        [&]<class T>(T*, Cuda device) {
          T* branch = memory<T>(kElements);
          kernels::add(device, kElements, memory<T>(kElements), branch, branch);
        });
}

INSTANTIATE_TEST_SUITE_P(, NormBytes, ::testing::Values(DType::kF32, DType::kBf16, DType::kFp16),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

}  // namespace
}  // namespace tandem::testing
