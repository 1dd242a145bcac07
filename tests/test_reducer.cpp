// The order in which buckets start, seen by a communicator that only keeps a record.
#include <gtest/gtest.h>

#include "comm/reducer.h"
#include "src/core/error.h"
#include "tests/harness.h"

namespace tandem::testing {
namespace {

class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator() : stream_(Stream::background(Device::kCpu)) {}
  int rank() const override { return 1; }
  int size() const override { return 2; }
  Stream& stream() override { return stream_; }
  void all_reduce(const Tensor& inout) override { note("all_reduce", inout, inout); }
  void reduce_scatter(const Tensor& in, const Tensor& out) override {
    note("reduce_scatter", in, out);
  }
  void all_gather(const Tensor& in, const Tensor& out) override { note("all_gather", in, out); }
  void broadcast(const Tensor&, int) override { unused(); }
  std::vector<double> sum(std::span<const double>) override {
    return unused(), std::vector<double>{};
  }
  std::string broadcast(std::string text, int) override { return unused(), text; }
  std::vector<std::string> all_gather(const std::string&) override {
    return unused(), std::vector<std::string>{};
  }
  void barrier() override { unused(); }
  WireCount wire() const override { return {}; }

  struct Call {
    std::string name;
    const std::byte *in, *out;
  };
  std::vector<Call> calls;
  bool fails = false;

 private:
  void note(const char* name, const Tensor& in, const Tensor& out) {
    calls.push_back({name, in.raw(), out.raw()});
    stream_.submit([in, out, this] {
      if (fails) {
        fail(ExitCode::kTemporary, "lost rank 0");
      }
      out.as<float>()[0] += 100;
    });
  }
  static void unused() { FAIL() << "a reducer sends no control messages"; }
  Stream stream_;
};

struct Buckets {
  explicit Buckets(int64_t count) {
    const Tensor flat =
        Tensor::zeros(test_memory(), {count * 8}, DType::kF32, MemoryClass::kGradients);
    for (int64_t i = 0; i < count; ++i) {
      partial.push_back({Placement::kPartial, flat.slice(i * 8, 8)});
      reduced.push_back({Placement::kReplicated, flat.slice(i * 8, 8)});
    }
  }
  std::vector<FlatBuffer> partial, reduced;

  std::vector<int64_t> order(const RecordingCommunicator& communicator) const {
    std::vector<int64_t> result;
    for (const auto& call : communicator.calls) {
      for (size_t i = 0; i < partial.size(); ++i) {
        if (partial[i].data.raw() == call.in) {
          result.push_back(static_cast<int64_t>(i));
        }
      }
    }
    return result;
  }
};

TEST(Reducer, StartsInReverseOrderWhateverIsReadyFirst) {
  for (const std::vector<int64_t>& ready :
       {std::vector<int64_t>{3, 2, 1, 0}, {0, 1, 2, 3}, {2, 3, 0, 1}, {1, 3, 2, 0}}) {
    RecordingCommunicator communicator;
    const Buckets buckets(4);
    Stream compute = Stream::compute(Device::kCpu);
    Reducer reducer(communicator, buckets.partial, buckets.reduced, true);
    reducer.begin();
    for (int64_t bucket : ready) {
      reducer.ready(compute, bucket);
    }
    EXPECT_EQ(communicator.calls.size(), 4u) << "all are ready, none waits for finish()";
    EXPECT_GE(reducer.finish(compute).seconds(), 0);
    EXPECT_EQ(buckets.order(communicator), (std::vector<int64_t>{3, 2, 1, 0}));
  }
}

TEST(Reducer, AReadyBucketWaitsForItsTurn) {
  RecordingCommunicator communicator;
  const Buckets buckets(4);
  Stream compute = Stream::compute(Device::kCpu);
  Reducer reducer(communicator, buckets.partial, buckets.reduced, true);
  reducer.begin();
  reducer.ready(compute, 2);
  EXPECT_TRUE(communicator.calls.empty());
  reducer.ready(compute, 3);
  EXPECT_EQ(buckets.order(communicator), (std::vector<int64_t>{3, 2}));
  reducer.ready(compute, 0);
  EXPECT_EQ(communicator.calls.size(), 2u);
  reducer.finish(compute);  // bucket 1 never became ready
  EXPECT_EQ(buckets.order(communicator), (std::vector<int64_t>{3, 2, 1, 0}));
  for (const FlatBuffer& bucket : buckets.reduced) {
    EXPECT_EQ(bucket.data.as<float>()[0], 100) << "finish() returned before the sums were there";
  }
}

TEST(Reducer, WithoutOverlapEverythingStartsAtTheEnd) {
  RecordingCommunicator communicator;
  const Buckets buckets(3);
  Stream compute = Stream::compute(Device::kCpu);
  Reducer reducer(communicator, buckets.partial, buckets.reduced, false);
  for (int step = 0; step < 2; ++step) {
    communicator.calls.clear();
    reducer.begin();
    for (int64_t bucket : {2, 1, 0}) {
      reducer.ready(compute, bucket);
    }
    EXPECT_TRUE(communicator.calls.empty());
    reducer.finish(compute);
    EXPECT_EQ(buckets.order(communicator), (std::vector<int64_t>{2, 1, 0}));
  }
}

TEST(Reducer, FailureOfTheCommunicationIsRethrown) {
  RecordingCommunicator communicator;
  communicator.fails = true;
  const Buckets buckets(1);
  Stream compute = Stream::compute(Device::kCpu);
  Reducer reducer(communicator, buckets.partial, buckets.reduced, true);
  reducer.begin();
  reducer.ready(compute, 0);
  EXPECT_THROW(reducer.finish(compute), Error);
}

TEST(Reducer, MisuseIsAnError) {
  RecordingCommunicator communicator;
  const Buckets buckets(2);
  Stream compute = Stream::compute(Device::kCpu);
  Reducer reducer(communicator, buckets.partial, buckets.reduced, true);
  EXPECT_THROW(reducer.ready(compute, 0), Error);  // before begin()
  reducer.begin();
  EXPECT_THROW(reducer.begin(), Error);
  reducer.ready(compute, 0);
  EXPECT_THROW(reducer.ready(compute, 0), Error);
  EXPECT_THROW(reducer.ready(compute, 2), Error);
}

TEST(Redistribute, ChoosesTheCollective) {
  RecordingCommunicator communicator;
  const Tensor whole = Tensor::zeros(test_memory(), {16}, DType::kF32, MemoryClass::kGradients);
  const Tensor part = whole.slice(8, 8),
               other = Tensor::zeros(test_memory(), {8}, DType::kF32, MemoryClass::kGradients);
  const auto name = [&](Placement from, Tensor source, Placement to, Tensor target) {
    communicator.calls.clear();
    redistribute(communicator, {from, source}, {to, target});
    communicator.stream().synchronize();
    return communicator.calls.empty() ? "" : communicator.calls[0].name;
  };
  using enum Placement;
  EXPECT_EQ(name(kPartial, whole, kReplicated, whole), "all_reduce");
  EXPECT_EQ(name(kPartial, whole, kSharded, part), "reduce_scatter");
  EXPECT_EQ(name(kSharded, part, kReplicated, whole), "all_gather");
  whole.as<float>()[15] = 5;
  EXPECT_EQ(name(kReplicated, whole, kSharded, other), "");
  EXPECT_EQ(other.as<float>()[7], 5);
  EXPECT_THROW(name(kReplicated, whole, kPartial, whole), Error);
  EXPECT_THROW(name(kSharded, part, kPartial, whole), Error);
  EXPECT_THROW(name(kPartial, whole, kReplicated, other), Error);
}

}  // namespace
}  // namespace tandem::testing
