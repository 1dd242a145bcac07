// Runs on every rank of a job of 1 to 4 ranks (tests/support/mpi_main.cpp), each with its own GPU.
// Where a host has fewer GPUs than ranks, only the refusal is tested.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "comm/transport/nccl_collectives.h"
#include "comm/transport/patience.h"
#include "src/device/copy.h"
#include "src/device/cuda.h"
#include "src/device/graph.h"
#include "src/kernels/elementwise.h"
#include "tests/comm/collectives_check.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

bool has_device() { return std::ranges::count(available_devices(), Device::kCuda) > 0; }

class NcclCollectivesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_device() || test_world().local_size() > cuda::device_count()) {
      GTEST_SKIP() << "this host has fewer GPUs than ranks";
    }
    cuda::use_device(test_world().local_rank());
    collectives = std::make_unique<NcclCollectives>(control, timeout_s, kLargestCount);
  }

  // Small, so that tensors are sent in several pieces.
  static constexpr int64_t kLargestCount = 1000;
  std::atomic<double> timeout_s = 30;
  Control& control = test_world().control();
  const int rank = control.rank();
  const int size = control.size();
  std::unique_ptr<Collectives> collectives;

  // Small integers: sums are exact.
  static double element(int from, int64_t i) { return static_cast<double>((from + 1) * (i % 13)); }
  Tensor there(const Tensor& host) const { return to_device(host, Device::kCuda); }
  Tensor zeros(int64_t n, DType dtype = DType::kF32) const {
    return there(Tensor::zeros(test_memory(), {n}, dtype, MemoryClass::kGradients));
  }
  // This rank's numbers from element `first` on.
  Tensor filled(int64_t n, DType dtype = DType::kF32, int64_t first = 0) const {
    Tensor host = Tensor::zeros(test_memory(), {n}, dtype, MemoryClass::kGradients);
    on_float(dtype, [&]<class T>() {
      for (int64_t i = 0; i < n; ++i) {
        host.data<T>()[i] = static_cast<T>(static_cast<Wide<T>>(element(rank, first + i)));
      }
    });
    return there(host);
  }
  double summed(int64_t i) const {
    double total = 0;
    for (int from = 0; from < size; ++from) {
      total += element(from, i);
    }
    return total;
  }
  template <class F>
  static int64_t wrong(const Tensor& tensor, F expected) {
    const std::vector<double> values = values_of(tensor);
    int64_t count = 0;
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      count += values[i] != expected(i);
    }
    return count;
  }
  // Runs `work` on the collectives' stream, after all earlier work, and returns what it sent.
  template <class F>
  WireCount sent(F work) {
    const WireCount before = collectives->wire();
    collectives->stream().wait(test_stream(Device::kCuda).record());
    work();
    collectives->wait(collectives->stream().record());
    return collectives->wire() - before;
  }
  std::vector<int64_t> sizes() const { return {0, 1, size - 1, 999, 1000, 1001, 2503}; }
};

// The graph copies x, which a collective of the same stream changes just before the launch.
TEST_F(NcclCollectivesTest, AGraphBeginsAfterWhatWasStartedBefore) {
  constexpr int64_t kCount = 1500;
  Stream& compute = test_stream(Device::kCuda);
  Stream& own = collectives->stream();
  const Tensor x = filled(kCount), y = zeros(kCount);
  const WireCount one = sent([&] { collectives->all_reduce(y); });
  const Graph graph(compute, [&] {
    copy(compute, x, y);
    own.wait(compute.record());
    collectives->all_reduce(y);
    compute.wait(own.record());
  });
  const WireCount two = sent([&] {
    collectives->all_reduce(x);
    collectives->before_graph(compute);
    graph.launch(compute);
    const Event done = compute.record();
    collectives->add_graph(done);
    collectives->wait(done);
  });
  EXPECT_EQ(wrong(y, [&](int64_t i) { return size * summed(i); }), 0);
  EXPECT_EQ(two, WireCount(one) += one);
}

TEST_F(NcclCollectivesTest, KeepsTheContract) {
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  check_collectives({control, *collectives}, all, Device::kCuda);
}

TEST_F(NcclCollectivesTest, SplitsKeepTheContract) {
  check_splits({control, *collectives}, Device::kCuda);
}

// Collectives of several communicators on one stream keep their order.
TEST_F(NcclCollectivesTest, SplitsShareTheStream) {
  std::vector<int> colors;
  for (int r = 0; r < size; ++r) {
    colors.push_back(r % 2);
  }
  const auto part = collectives->split(colors);
  EXPECT_EQ(&part->stream(), &collectives->stream());
  const Tensor data = filled(100);
  collectives->stream().wait(test_stream(Device::kCuda).record());
  std::this_thread::sleep_for(std::chrono::milliseconds(20 * rank));
  collectives->all_reduce(data);
  part->all_reduce(data);
  collectives->all_reduce(data);
  part->wait(part->stream().record());
  // Each rank of a colour has its group's size times the sum, and all of these are added.
  const int odd = size / 2, even = size - odd;
  EXPECT_EQ(wrong(data, [&](int64_t i) { return (odd * odd + even * even) * summed(i); }), 0);
}

TEST_F(NcclCollectivesTest, SplitsApartHaveAStream) {
  const auto apart = collectives->split_apart(std::vector<int>(static_cast<size_t>(size), 0));
  EXPECT_NE(&apart->stream(), &collectives->stream());
  EXPECT_EQ(&apart->split(std::vector<int>(static_cast<size_t>(size), 0))->stream(),
            &apart->stream());
  const Tensor one = filled(100), other = filled(200);
  for (Collectives* each : {collectives.get(), apart.get()}) {
    each->stream().wait(test_stream(Device::kCuda).record());
  }
  collectives->all_reduce(one);
  apart->all_reduce(other);
  apart->stream().wait(collectives->stream().record());
  apart->all_reduce(one);
  apart->wait(apart->stream().record());
  EXPECT_EQ(wrong(one, [&](int64_t i) { return size * summed(i); }), 0);
  EXPECT_EQ(wrong(other, [&](int64_t i) { return summed(i); }), 0);
}

TEST_F(NcclCollectivesTest, BytesAreCountedByNode) {
  std::vector<int> nodes;
  for (int r = 0; r < size; ++r) {
    nodes.push_back(r / 2);
  }
  collectives->set_nodes(nodes);
  const bool next_is_away = nodes[(rank + 1) % size] != nodes[rank];
  const Tensor data = filled(8 * size), other = zeros(8 * size);
  const int64_t bytes = 2 * (size - 1) * 8 * 4;
  const WireCount ring = sent([&] { collectives->all_reduce(data); });
  EXPECT_EQ(ring.of(Traffic::kAllReduce),
            (WireCount::Bytes{next_is_away ? 0 : bytes, next_is_away ? bytes : 0}));
  const WireCount direct = sent([&] { collectives->all_to_all(data, other); });
  const int64_t peers = std::count(nodes.begin(), nodes.end(), nodes[rank]) - 1;
  EXPECT_EQ(direct.of(Traffic::kAllToAll),
            (WireCount::Bytes{peers * 8 * 4, (size - 1 - peers) * 8 * 4}));
}

TEST_F(NcclCollectivesTest, AllReduceIsTheExactSum) {
  for (int64_t n : sizes()) {
    for (DType dtype : {DType::kF32, DType::kF64}) {
      SCOPED_TRACE(str(n, " elements of ", name_of(dtype)));
      const Tensor data = filled(n, dtype);
      const WireCount wire = sent([&] { collectives->all_reduce(data); });
      EXPECT_EQ(wrong(data, [&](int64_t i) { return summed(i); }), 0);
      EXPECT_EQ(wire.of(Traffic::kControl).total(), 0);
      EXPECT_EQ(wire.collectives, 1);
      const double payload = static_cast<double>(wire.payload().total());
      EXPECT_EQ(control.sum({&payload, 1})[0],
                2.0 * (size - 1) * static_cast<double>(data.bytes()));
    }
  }
}

TEST_F(NcclCollectivesTest, AllReduceSendsExactlyItsShare) {
  const Tensor data = filled(int64_t{128} * size);
  const WireCount wire = sent([&] { collectives->all_reduce(data); });
  EXPECT_EQ(wire.payload().total(), 2 * (size - 1) * data.bytes() / size);
}

TEST_F(NcclCollectivesTest, ReduceScatter) {
  for (int64_t n : sizes()) {
    for (bool in_place : {false, true}) {
      SCOPED_TRACE(str(n, " elements a rank", in_place ? ", in place" : ""));
      const Tensor in = filled(n * size);
      const Tensor out = in_place ? in.slice(n * rank, n) : zeros(n);
      const WireCount wire = sent([&] { collectives->reduce_scatter(in, out); });
      EXPECT_EQ(wrong(out, [&](int64_t i) { return summed(n * rank + i); }), 0);
      EXPECT_EQ(wire.payload().total(), (size - 1) * out.bytes());
    }
  }
}

TEST_F(NcclCollectivesTest, AllGather) {
  for (int64_t n : sizes()) {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      for (bool in_place : {false, true}) {
        SCOPED_TRACE(str(n, " elements a rank", in_place ? ", in place" : ""));
        const Tensor out = in_place ? filled(n * size, dtype) : zeros(n * size, dtype);
        const Tensor in = in_place ? out.slice(n * rank, n) : filled(n, dtype, n * rank);
        const WireCount wire = sent([&] { collectives->all_gather(in, out); });
        EXPECT_EQ(wrong(out, [&](int64_t i) { return element(static_cast<int>(i / n), i); }), 0);
        EXPECT_EQ(wire.payload().total(), (size - 1) * in.bytes());
      }
    }
  }
}

// Ranks arrive at different times; the stream, not the host, keeps the order.
TEST_F(NcclCollectivesTest, CollectivesAreAsynchronousAndInOrder) {
  const Tensor a = filled(1000), b = filled(1000);
  collectives->stream().wait(test_stream(Device::kCuda).record());
  std::this_thread::sleep_for(std::chrono::milliseconds(20 * rank));
  collectives->all_reduce(a);
  collectives->all_reduce(b);
  collectives->all_reduce(a);  // sees the first sum
  collectives->wait(collectives->stream().record());
  EXPECT_EQ(wrong(a, [&](int64_t i) { return size * summed(i); }), 0);
  EXPECT_EQ(wrong(b, [&](int64_t i) { return summed(i); }), 0);
}

// As between backward and the optimizer: the collective waits for one event and records another.
TEST_F(NcclCollectivesTest, EventsOrderItWithComputing) {
  Stream& compute = test_stream(Device::kCuda);
  const Tensor data = zeros(5000);
  kernels::fill(Cuda{compute.handle()}, data.elements(), data.data<float>(),
                static_cast<float>(rank + 1));
  collectives->stream().wait(compute.record());
  collectives->all_reduce(data);
  compute.wait(collectives->stream().record());
  kernels::add(Cuda{compute.handle()}, data.elements(), data.data<float>(), data.data<float>(),
               data.data<float>());
  collectives->wait(compute.record());
  EXPECT_EQ(wrong(data, [&](int64_t) { return size * (size + 1.0); }), 0);
}

// The host of one rank reads a number that needs no communication, while the other ranks need that
// rank to communicate.
TEST_F(NcclCollectivesTest, WaitingForSomethingElseHoldsNobodyUp) {
  const Tensor data = filled(100);
  collectives->stream().wait(test_stream(Device::kCuda).record());
  collectives->all_reduce(data);
  if (rank == 0) {
    EXPECT_EQ(values_of(filled(3)).size(), 3u);
    control.barrier();
    collectives->wait(collectives->stream().record());
  } else {
    collectives->wait(collectives->stream().record());
    control.barrier();
  }
  EXPECT_EQ(wrong(data, [&](int64_t i) { return summed(i); }), 0);
}

TEST_F(NcclCollectivesTest, WrongArgumentsAreErrorsBeforeAnythingIsSent) {
  const Tensor data = zeros(4 * size), integers = zeros(size, DType::kI32);
  EXPECT_THROW(collectives->all_reduce(integers), Error);
  EXPECT_THROW(collectives->reduce_scatter(integers, integers.slice(0, 1)), Error);
  EXPECT_THROW(collectives->all_reduce(zeros(size, DType::kBf16)), Error);
  EXPECT_THROW(collectives->reduce_scatter(data, zeros(5)), Error);
  EXPECT_THROW(collectives->all_to_all(data, data), Error);
  EXPECT_THROW(collectives->split({}), Error);
  EXPECT_THROW(collectives->all_gather(zeros(5), data), Error);
  EXPECT_THROW(collectives->all_reduce(to_host(data)), Error);
  EXPECT_EQ(collectives->wire().collectives, 0);
}

// The last rank stays away: the others give up and name the collective, and later calls fail, too.
TEST_F(NcclCollectivesTest, DeadlineNamesTheCollective) {
  if (size == 1) {
    GTEST_SKIP() << "nobody to wait for";
  }
  const Tensor data = filled(100);
  sent([&] { collectives->all_reduce(data); });
  timeout_s = 0.5;
  if (rank < size - 1) {
    std::string message;
    const Patience time;
    try {
      collectives->all_gather(data.slice(0, 1), zeros(size));
      collectives->wait(collectives->stream().record());
    } catch (const Error& error) {
      message = error.what();
      EXPECT_EQ(error.code(), ExitCode::kTemporary);
    }
    EXPECT_LT(time.waited_s(), 5);
    const std::string expected = str("all_gather of ", 4 * size, " bytes (collective 2 of this run",
                                     ", rank ", rank, " of ", size, "): nothing moved for 0.5 s");
    EXPECT_EQ(message.find(expected), 0u) << message;
    EXPECT_THROW(collectives->all_reduce(data), Error);
  }
  control.barrier();
}

// A rank stays away from a collective of a split. One failed communicator makes all of them fail.
TEST_F(NcclCollectivesTest, DeadlineOfASplitEndsAllOnTheStream) {
  if (size < 3) {
    GTEST_SKIP() << "needs a part of the job";
  }
  std::vector<int> colors(static_cast<size_t>(size), 1);
  colors[0] = 0;
  const auto part = collectives->split(colors);
  const Tensor data = filled(100);
  timeout_s = 0.5;
  if (rank > 0 && rank < size - 1) {
    std::string message;
    try {
      part->all_reduce(data);
      collectives->wait(collectives->stream().record());
    } catch (const Error& error) {
      message = error.what();
      EXPECT_EQ(error.code(), ExitCode::kTemporary);
    }
    const std::string members = size == 3 ? "ranks 1, 2" : "ranks 1, 2, 3";
    EXPECT_EQ(message.find(str("all_reduce of 400 bytes (collective 1 of ", members, ", rank ",
                               rank, " of ", size, "): nothing moved for 0.5 s")),
              0u)
        << message;
    EXPECT_THROW(collectives->all_reduce(data), Error);
    EXPECT_THROW(part->all_reduce(data), Error);
  }
  timeout_s = 30;
  control.barrier();
}

// A rank that leaves on an error must not wait for the others, which are still working.
TEST_F(NcclCollectivesTest, UnwindingDoesNotWait) {
  const Patience time;
  try {
    const auto mine = std::move(collectives);
    fail(ExitCode::kData, "this rank's file is broken");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
  }
  EXPECT_LT(time.waited_s(), 5);
}

TEST(NcclCollectives, RefusesRanksThatShareAGpu) {
  World& world = test_world();
  if (!has_device() || world.local_size() == 1) {
    GTEST_SKIP() << "no GPU to share, or nobody to share it with";
  }
  cuda::use_device(0);
  const std::atomic<double> timeout_s = 30;
  try {
    NcclCollectives collectives(world.control(), timeout_s);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    const std::string message = error.what();
    EXPECT_EQ(message.find("ranks 0 and 1 both use GPU "), 0u) << message;
    EXPECT_NE(message.find("--dist.backend mpi"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace tandem::testing
