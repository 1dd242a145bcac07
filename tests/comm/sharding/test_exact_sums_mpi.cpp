// Runs on every rank of a job of 1 to 4 ranks (tests/support/mpi_main.cpp). Sums over ranks must
// have the bits of the definition, which knows no ranks: through MPI on every device, and through
// NCCL where every rank has a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "comm/sharding/exact/exact_sums.h"
#include "comm/transport/nccl_collectives.h"
#include "src/device/cuda.h"
#include "src/device/dispatch.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

using Verdict = ExactSums::Verdict;

constexpr int64_t kLeaves = 12, kCount = 1000;
const std::vector<Extent> kSegments = {{0, 0, 400}, {1, 401, 599}};

// The second parameter's gradients are much smaller.
float element(int64_t leaf, int64_t i, float scale) {
  const auto hash = static_cast<uint32_t>(leaf * kCount + i + 1) * 2654435761u;
  const float g = static_cast<float>(hash >> 8) * 0x1p-23f - 1.0f;
  return (i < 400 ? g : g * 0x1p-70f) * scale;
}

// One rank's work in a step whose leaves are dealt to the ranks in turn.
class Job {
 public:
  Job(Device device, const Ranks& ranks)
      : exact(test_stream(device), test_memory(device), 2, kLeaves),
        ranks_(ranks),
        device_(device),
        sums_(Tensor::empty(test_memory(device), {kCount}, DType::kI64, MemoryClass::kGradients)),
        values_(
            Tensor::empty(test_memory(device), {kCount}, DType::kF32, MemoryClass::kGradients)) {}

  // `odd_one` replaces one element of the leaf `odd_leaf`, which only one rank has.
  Verdict step(float scale, float odd_one, int64_t odd_leaf = kLeaves - 1) {
    const Tensor leaf =
        Tensor::empty(test_memory(), {kCount}, DType::kF32, MemoryClass::kGradients);
    exact.begin_step();
    for (int64_t l = ranks_.rank(); l < kLeaves; l += ranks_.size()) {
      for (int64_t i = 0; i < kCount; ++i) {
        leaf.data<float>()[i] = element(l, i, scale);
      }
      if (l == odd_leaf) {
        leaf.data<float>()[5] = odd_one;
      }
      exact.quantise(to_device(leaf, device_), kSegments, sums_, l >= ranks_.size());
    }
    ranks_.collectives.stream().wait(test_stream(device_).record());
    ranks_.collectives.all_reduce(sums_);
    const Event summed = ranks_.collectives.stream().record();
    ranks_.collectives.wait(summed);
    test_stream(device_).wait(summed);
    exact.dequantise(sums_, kSegments, values_);
    return exact.judge(ranks_.control);
  }
  Tensor sums() const { return to_host(sums_); }
  const Tensor& values() const { return values_; }
  double squared_norm(const std::vector<Tensor>& parts) {
    Timeline timeline;
    return exact.squared_norm(ranks_.collectives, parts, timeline);
  }

  ExactSums exact;

 private:
  Ranks ranks_;
  Device device_;
  Tensor sums_, values_;
};

void for_each_way(const std::function<void(Device, const Ranks&)>& body) {
  World& world = test_world();
  for_each_device([&](Device device) {
    body(device, test_ranks());
    if constexpr (kHasCuda) {
      if (device == Device::kCuda && world.local_size() <= cuda::device_count()) {
        SCOPED_TRACE("nccl");
        cuda::use_device(world.local_rank());
        NcclCollectives nccl(world.control(), world.timeout_s());
        body(device, {world.control(), nccl});
      }
    }
  });
}

TEST(ExactSumsOfRanks, AreThoseOfTheDefinition) {
  for_each_way([](Device device, const Ranks& ranks) {
    Job job(device, ranks);
    EXPECT_EQ(job.step(1, 0.25f), Verdict::kAgain);
    EXPECT_EQ(job.step(1, 0.25f), Verdict::kGood);
    const std::vector<int32_t> exponents = job.exact.exponents();
    std::vector<int64_t> expected(kCount, 0);
    for (const auto& [parameter, offset, count, in_parameter] : kSegments) {
      for (int64_t i = offset; i < offset + count; ++i) {
        for (int64_t l = 0; l < kLeaves; ++l) {
          const float g = l == kLeaves - 1 && i == 5 ? 0.25f : element(l, i, 1);
          expected[i] += std::llrint(std::ldexp(static_cast<double>(g), exponents[parameter]));
        }
      }
    }
    const Tensor sums = job.sums();
    EXPECT_TRUE(std::ranges::equal(sums.as<int64_t>(), expected));
    const int64_t part = kCount / ranks.size(), first = part * ranks.rank();
    const bool last = ranks.rank() == ranks.size() - 1;
    const Tensor& values = job.values();
    const std::vector<Tensor> alone = {values}, none = {};
    const std::vector<Tensor> own = {values.slice(first, last ? kCount - first : part)};
    EXPECT_EQ(job.squared_norm(own), job.squared_norm(last ? alone : none));
    double norm2 = 0;
    for (double value : values_of(values)) {
      norm2 += value * value;
    }
    // sqrt(n) 2^-31 G with G = 12 leaves of at most 1; f64 adds far less.
    EXPECT_NEAR(std::sqrt(job.squared_norm(own)), std::sqrt(norm2),
                std::sqrt(1000.0) * 0x1p-31 * 12);
  });
}

TEST(ExactSumsOfRanks, JudgeAllByOne) {
  for_each_way([](Device device, const Ranks& ranks) {
    Job job(device, ranks);
    EXPECT_EQ(job.step(1, 0), Verdict::kAgain);
    EXPECT_EQ(job.step(1, 0), Verdict::kGood);
    EXPECT_EQ(job.step(1, 1e5f), Verdict::kAgain);
    EXPECT_EQ(job.step(1, std::numeric_limits<float>::quiet_NaN()), Verdict::kNonFinite);
    EXPECT_EQ(job.step(1, 1e5f), Verdict::kGood);
    EXPECT_EQ(job.step(0x1p-20f, 0), Verdict::kAgain);
    EXPECT_EQ(job.step(0x1p-20f, 0), Verdict::kGood);
  });
}

TEST(ExactSumsOfRanks, TheLargestCountsOnWhicheverRankItIs) {
  for_each_way([](Device device, const Ranks& ranks) {
    for (int64_t rank = 0; rank < ranks.size(); ++rank) {  // each has the leaf of its own number
      Job job(device, ranks);
      EXPECT_EQ(job.step(1, 0), Verdict::kAgain);
      EXPECT_EQ(job.step(1, 0), Verdict::kGood);
      EXPECT_EQ(job.step(1, 1e5f, rank), Verdict::kAgain) << "rank " << rank;
    }
  });
}

}  // namespace
}  // namespace tandem::testing
