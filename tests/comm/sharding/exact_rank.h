// Exact sums in one process: collectives among threads, a rank, and the definition of the sums in
// long double. Its significand has 64 bits, so every step of the definition is exact.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "comm/sharding/exact/exact_sums.h"
#include "src/core/error.h"
#include "tests/support/harness.h"
#include "tests/support/ranks.h"

namespace tandem::testing {

using Verdict = ExactSums::Verdict;
using Segments = std::vector<Extent>;
static_assert(std::numeric_limits<long double>::digits >= 64);

[[noreturn]] inline void unused() { fail(ExitCode::kInternal, "exact sums do not need this"); }

// Ranks as threads that meet.
struct Meeting {
  explicit Meeting(int ranks) : barrier(ranks), texts(ranks), tensors(ranks) {}
  std::barrier<> barrier;
  std::vector<std::string> texts;
  std::vector<Tensor> tensors;
};

class ThreadCollectives final : public Collectives {
 public:
  ThreadCollectives(Meeting& meeting, int rank, Device device)
      : meeting_(meeting), rank_(rank), stream_(Stream::background(device)) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_.texts.size()); }
  Stream& stream() override { return stream_; }
  void all_reduce(const Tensor& inout, Traffic traffic) override {
    EXPECT_EQ(traffic, Traffic::kControl);
    if (size() == 1) {
      return;
    }
    stream_.submit([this, inout] {
      meeting_.tensors[rank_] = inout;
      meeting_.barrier.arrive_and_wait();
      std::vector<int64_t> total(static_cast<size_t>(inout.elements()), 0);
      for (const Tensor& tensor : meeting_.tensors) {
        std::ranges::transform(total, tensor.as<int64_t>(), total.begin(), std::plus{});
      }
      meeting_.barrier.arrive_and_wait();
      std::ranges::copy(total, inout.data<int64_t>());
    });
  }
  void reduce_scatter(const Tensor&, const Tensor&) override { unused(); }
  void all_gather(const Tensor&, const Tensor&) override { unused(); }
  void all_to_all_v(const Tensor&, std::span<const Range>, const Tensor&, std::span<const Range>,
                    int64_t) override {
    unused();
  }
  std::unique_ptr<Collectives> split(std::span<const int>) override { unused(); }
  void set_nodes(std::span<const int>) override { unused(); }
  WireCount wire() const override { unused(); }

 private:
  Meeting& meeting_;
  int rank_;
  Stream stream_;
};

class ThreadControl final : public Control {
 public:
  ThreadControl(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_.texts.size()); }
  std::vector<std::string> all_gather(const std::string& text) override {
    meeting_.texts[rank_] = text;
    meeting_.barrier.arrive_and_wait();
    const std::vector<std::string> all = meeting_.texts;
    meeting_.barrier.arrive_and_wait();
    return all;
  }
  std::vector<double> sum(std::span<const double>) override { unused(); }
  std::string broadcast(std::string, int) override { unused(); }
  void barrier() override { unused(); }
  ClockReading read_clock() override { unused(); }
  std::unique_ptr<Control> split(std::span<const int>) override { unused(); }
  void set_nodes(std::span<const int>) override { unused(); }
  WireCount wire() const override { unused(); }

 private:
  Meeting& meeting_;
  int rank_;
};

inline Tensor host_tensor(std::span<const float> values) {
  const auto n = static_cast<int64_t>(values.size());
  const Tensor tensor = Tensor::empty(test_memory(), {n}, DType::kF32, MemoryClass::kGradients);
  std::ranges::copy(values, tensor.data<float>());
  return tensor;
}

// One rank on a device.
struct Rank {
  Rank(Device on, int64_t parameters, int64_t leaves)
      : device(on),
        collectives(meeting, 0, on),
        exact(test_stream(on), test_memory(on), parameters, leaves) {}

  Tensor there(std::span<const float> values) const {
    return to_device(host_tensor(values), device);
  }
  Tensor empty(int64_t n, DType dtype) const {
    return Tensor::empty(test_memory(device), {n}, dtype, MemoryClass::kGradients);
  }
  // Memory that was used before and holds other values.
  Tensor used(int64_t n, DType dtype) const {
    const Tensor tensor = Tensor::empty(test_memory(), {n}, dtype, MemoryClass::kGradients);
    std::memset(tensor.raw(), 0x77, static_cast<size_t>(tensor.bytes()));
    return to_device(tensor, device);
  }
  // A whole step in which each parameter is one segment of one element.
  Verdict step(std::span<const float> leaf) {
    const auto n = static_cast<int64_t>(leaf.size());
    Segments segments;
    for (int64_t i = 0; i < n; ++i) {
      segments.push_back({static_cast<ParamId>(i), i, 1});
    }
    const Tensor sums = empty(n, DType::kI64), values = empty(n, DType::kF32);
    exact.begin_step();
    exact.quantise(there(leaf), segments, sums, false);
    exact.dequantise(sums, segments, values);
    last = to_host(values);
    last_sums = to_host(sums);
    return exact.judge(control);
  }
  Verdict step(float g) { return step(std::span(&g, 1)); }

  Device device;
  Meeting meeting{1};
  ThreadControl control{meeting, 0};
  ThreadCollectives collectives;
  ExactSums exact;
  Tensor last, last_sums;
};

inline int64_t exact_integer(float g, int32_t exponent) {
  return std::llrintl(std::ldexp(static_cast<long double>(g), exponent));
}

}  // namespace tandem::testing
