// Runs on every rank of a job of 1 to 4 ranks (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <thread>

#include "comm/sharding/flat_buffer.h"
#include "src/device/dispatch.h"
#include "src/device/ranks/agreement.h"
#include "tests/comm/collectives_check.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

class MpiCollectivesTest : public ::testing::Test {
 protected:
  Control& control = test_world().control();
  Collectives& collectives = test_world().collectives();
  const int rank = collectives.rank();
  const int size = collectives.size();

  Tensor tensor(int64_t n, DType dtype = DType::kF32) const {
    return Tensor::zeros(test_memory(), {n}, dtype, MemoryClass::kGradients);
  }
  // Small integers: sums are exact in f32.
  static double element(int from, int64_t i) {
    return static_cast<double>((from + 1) * (i % 1013) + from);
  }
  Tensor filled(int64_t n, DType dtype = DType::kF32) const {
    Tensor result = tensor(n, dtype);
    on_float(dtype, [&]<class T>() {
      for (int64_t i = 0; i < n; ++i) {
        result.data<T>()[i] = T(static_cast<Wide<T>>(element(rank, i)));
      }
    });
    return result;
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
    return on_float(tensor.dtype(), [&]<class T>() {
      int64_t count = 0;
      for (int64_t i = 0; i < tensor.elements(); ++i) {
        count += tensor.data<T>()[i] != T(static_cast<Wide<T>>(expected(i)));
      }
      return count;
    });
  }
  WireCount wire_of_both() const {
    WireCount both = collectives.wire();
    return both += control.wire();
  }
  // Runs `work` and returns what it sent.
  template <class F>
  WireCount sent(F work) {
    collectives.stream().synchronize();
    const WireCount before = wire_of_both();
    work();
    collectives.stream().synchronize();
    return wire_of_both() - before;
  }

  std::vector<int64_t> sizes() const { return {0, 1, size - 1, size, 1000003}; }
};

TEST_F(MpiCollectivesTest, KeepsTheContract) {
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  check_collectives({control, collectives}, all, Device::kCpu);
}

// Groups that are split apart do not wait for others: here rank 0 starts the collective of all
// ranks only when that of the other group has ended.
TEST_F(MpiCollectivesTest, SplitsApartHaveAThread) {
  if (size == 1) {
    GTEST_SKIP() << "one rank sends nothing";
  }
  const std::vector<int> one_color(static_cast<size_t>(size), 0);
  const auto apart = collectives.split_apart(one_color);
  EXPECT_NE(&apart->stream(), &collectives.stream());
  EXPECT_EQ(&apart->split(one_color)->stream(), &apart->stream());
  const Tensor first = filled(100), second = filled(200);
  if (rank > 0) {
    collectives.all_reduce(first);
  }
  apart->all_reduce(second);
  apart->wait(apart->stream().record());
  if (rank == 0) {
    collectives.all_reduce(first);
  }
  collectives.wait(collectives.stream().record());
  for (const Tensor& data : {first, second}) {
    EXPECT_EQ(wrong(data, [&](int64_t i) { return summed(i); }), 0);
  }
}

TEST_F(MpiCollectivesTest, SplitsKeepTheContract) {
  check_splits({control, collectives}, Device::kCpu);
}

TEST_F(MpiCollectivesTest, BytesAreCountedByNode) {
  std::vector<int> nodes;
  for (int r = 0; r < size; ++r) {
    nodes.push_back(r / 2);
  }
  collectives.set_nodes(nodes);
  const bool next_is_away = nodes[(rank + 1) % size] != nodes[rank];
  const Tensor data = filled(8 * size), other = tensor(8 * size);
  const WireCount ring = sent([&] { collectives.all_reduce(data); });
  const int64_t bytes = 2 * (size - 1) * 8 * 4;
  EXPECT_EQ(ring.of(Traffic::kAllReduce).between, next_is_away ? bytes : 0);
  EXPECT_EQ(ring.of(Traffic::kAllReduce).inside, next_is_away ? 0 : bytes);
  const WireCount direct = sent([&] { collectives.all_to_all(data, other); });
  const int64_t peers = std::count(nodes.begin(), nodes.end(), nodes[rank]) - 1;
  EXPECT_EQ(direct.of(Traffic::kAllToAll).inside, peers * 8 * 4);
  EXPECT_EQ(direct.of(Traffic::kAllToAll).between, (size - 1 - peers) * 8 * 4);
  // Splits know the nodes too.
  const auto again = collectives.split(std::vector<int>(static_cast<size_t>(size), 0));
  again->all_reduce(data);
  again->wait(again->stream().record());
  EXPECT_EQ(again->wire().of(Traffic::kAllReduce), ring.of(Traffic::kAllReduce));
  collectives.set_nodes(std::vector<int>(static_cast<size_t>(size), 0));
}

TEST_F(MpiCollectivesTest, AllReduceIsTheExactSum) {
  for (int64_t n : sizes()) {
    for (DType dtype : {DType::kF32, DType::kF64}) {
      SCOPED_TRACE(str(n, " elements of ", name_of(dtype)));
      const Tensor data = filled(n, dtype);
      const WireCount wire = sent([&] { collectives.all_reduce(data); });
      EXPECT_EQ(wrong(data, [&](int64_t i) { return summed(i); }), 0);
      EXPECT_EQ(wire.of(Traffic::kControl).total(), 0);
      EXPECT_EQ(wire.collectives, size > 1 ? 1 : 0);
      // With uneven shards the bytes of a rank depend on which shards it sends; the ranks together
      // send every shard 2 (N - 1) times.
      const double payload = static_cast<double>(wire.payload().total());
      EXPECT_EQ(control.sum({&payload, 1})[0],
                2.0 * (size - 1) * static_cast<double>(data.bytes()));
    }
  }
}

TEST_F(MpiCollectivesTest, AllReduceSendsExactlyItsShare) {
  for (int64_t n : {int64_t{128} * size, int64_t{1000320} / (128 * size) * 128 * size}) {
    const Tensor data = filled(n);
    const WireCount wire = sent([&] { collectives.all_reduce(data); });
    EXPECT_EQ(wire.payload().total(), 2 * (size - 1) * data.bytes() / size);
  }
}

// 1,000,003 parameters padded to ranks * 128 elements; figures worked out by hand.
TEST_F(MpiCollectivesTest, WireBytesOfAnAwkwardSize) {
  const int64_t step = int64_t{128} * size;
  const Tensor data = filled((1000003 + step - 1) / step * step);
  const WireCount wire = sent([&] { collectives.all_reduce(data); });
  constexpr int64_t kExpected[] = {0, 0, 4000768, 5335040, 6002688};
  ASSERT_LE(size, 4);
  EXPECT_EQ(wire.payload().total(), kExpected[size]);
}

TEST_F(MpiCollectivesTest, AllRanksGetTheSameBits) {
  constexpr int64_t kCount = 100001;
  const Tensor data = tensor(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    data.data<float>()[i] = 1.0f / static_cast<float>(3 + i + 1000 * rank);
  }
  collectives.all_reduce(data);
  collectives.stream().synchronize();
  const auto all = control.all_gather(
      std::string(reinterpret_cast<const char*>(data.raw()), static_cast<size_t>(data.bytes())));
  for (const std::string& one : all) {
    EXPECT_TRUE(one == all[0]);
  }
}

TEST_F(MpiCollectivesTest, ReduceScatter) {
  for (int64_t n : {0, 1, 5, 250001}) {
    for (bool in_place : {false, true}) {
      SCOPED_TRACE(str(n, " elements a rank", in_place ? ", in place" : ""));
      const Tensor in = filled(n * size);
      const Tensor out = in_place ? in.slice(n * rank, n) : tensor(n);
      const WireCount wire = sent([&] { collectives.reduce_scatter(in, out); });
      EXPECT_EQ(wrong(out, [&](int64_t i) { return summed(n * rank + i); }), 0);
      EXPECT_EQ(wire.payload().total(), (size - 1) * out.bytes());
    }
  }
}

TEST_F(MpiCollectivesTest, AllGather) {
  for (int64_t n : {0, 1, 5, 250001}) {
    for (bool in_place : {false, true}) {
      SCOPED_TRACE(str(n, " elements a rank", in_place ? ", in place" : ""));
      const Tensor out = tensor(n * size);
      const Tensor in = in_place ? out.slice(n * rank, n) : tensor(n);
      for (int64_t i = 0; i < n; ++i) {
        in.data<float>()[i] = static_cast<float>(element(rank, i));
      }
      const WireCount wire = sent([&] { collectives.all_gather(in, out); });
      EXPECT_EQ(wrong(out, [&](int64_t i) { return element(static_cast<int>(i / n), i % n); }), 0);
      EXPECT_EQ(wire.payload().total(), (size - 1) * in.bytes());
    }
  }
}

TEST_F(MpiCollectivesTest, RedistributeMovesWhatThePlacementsSay) {
  using enum Placement;
  constexpr int64_t kCount = 257;
  const auto expect = [&](const Tensor& result, int64_t first) {
    collectives.stream().synchronize();
    EXPECT_EQ(wrong(result, [&](int64_t i) { return summed(first + i); }), 0);
  };
  Memory memory(Device::kCpu);
  const Group ranks(control, collectives, memory, std::vector<int>(static_cast<size_t>(size), 0));
  const Tensor partial = filled(kCount * size), part = tensor(kCount);
  redistribute(ranks, {kPartial, partial}, {kSharded, part});
  expect(part, kCount * rank);
  const Tensor whole = tensor(kCount * size);
  redistribute(ranks, {kSharded, part}, {kReplicated, whole});
  expect(whole, 0);
  const Tensor in_place = filled(kCount * size);
  redistribute(ranks, {kPartial, in_place}, {kReplicated, in_place});
  expect(in_place, 0);
  EXPECT_THROW(redistribute(ranks, {kPartial, in_place}, {kReplicated, whole}), Error);
  EXPECT_THROW(redistribute(ranks, {kReplicated, whole}, {kSharded, part}), Error);
  EXPECT_THROW(redistribute(ranks, {kSharded, part}, {kPartial, whole}), Error);
}

// All ranks of this test have the clock of one host.
TEST_F(MpiCollectivesTest, RanksKnowTheClockOfRank0) {
  const auto now = [] {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  const int64_t before = now();
  const ClockReading reading = control.read_clock();
  EXPECT_GE(reading.at, before);
  EXPECT_LE(reading.at, now());
  EXPECT_LE(std::abs(reading.offset), reading.bound);
  EXPECT_EQ(reading.bound > 0, rank > 0);
}

TEST_F(MpiCollectivesTest, ControlMessages) {
  const WireCount wire = sent([&] {
    const std::vector<double> values = {1.0 * rank, 0.5};
    EXPECT_EQ(control.sum(values), (std::vector<double>{size * (size - 1) / 2.0, 0.5 * size}));
    EXPECT_TRUE(control.sum({}).empty());
    const auto texts = control.all_gather(std::string(static_cast<size_t>(rank), 'x'));
    ASSERT_EQ(texts.size(), static_cast<size_t>(size));
    for (int from = 0; from < size; ++from) {
      EXPECT_EQ(texts[from], std::string(static_cast<size_t>(from), 'x'));
    }
    for (int root = 0; root < size; ++root) {
      EXPECT_EQ(control.broadcast(str("from ", rank), root), str("from ", root));
      EXPECT_EQ(control.broadcast("", root), "");
    }
    control.barrier();
  });
  EXPECT_EQ(wire.payload().total(), 0);
  EXPECT_EQ(wire.collectives, 0);
  EXPECT_EQ(wire.of(Traffic::kControl).total() > 0, size > 1);
}

// The contract is to add in rank order: 1 + 2^-53 + 2^-53 ... rounds differently in another order.
TEST_F(MpiCollectivesTest, SumAddsInRankOrder) {
  const double tiny = std::numeric_limits<double>::epsilon() / 2;
  const double value = rank == 0 ? 1.0 : tiny;
  EXPECT_EQ(control.sum({&value, 1})[0], 1.0) << "1 + tiny is 1, over and over";
  const double last_is_one = rank == size - 1 ? 1.0 : tiny;
  double expected = 0;
  for (int from = 0; from < size; ++from) {
    expected += from == size - 1 ? 1.0 : tiny;
  }
  EXPECT_EQ(control.sum({&last_is_one, 1})[0], expected);
}

TEST_F(MpiCollectivesTest, TensorCollectivesAreAsynchronousAndInOrder) {
  const Tensor a = filled(1000), b = filled(1000);
  std::this_thread::sleep_for(std::chrono::milliseconds(20 * rank));
  collectives.all_reduce(a);
  collectives.all_reduce(b);
  collectives.all_reduce(a);  // sees the first sum
  const Event done = collectives.stream().record();
  done.synchronize();
  EXPECT_EQ(wrong(a, [&](int64_t i) { return size * summed(i); }), 0);
  EXPECT_EQ(wrong(b, [&](int64_t i) { return summed(i); }), 0);
}

TEST_F(MpiCollectivesTest, WrongArgumentsAreErrorsBeforeAnythingIsSent) {
  const Tensor data = tensor(4 * size);
  if (size > 1) {
    const Tensor integers =
        Tensor::zeros(test_memory(), {size}, DType::kI32, MemoryClass::kGradients);
    EXPECT_THROW(collectives.all_reduce(integers), Error);
    EXPECT_THROW(collectives.reduce_scatter(integers, integers.slice(0, 1)), Error);
    EXPECT_THROW(collectives.all_reduce(tensor(size, DType::kBf16)), Error);
    EXPECT_THROW(collectives.all_to_all(data, data), Error);
    EXPECT_THROW(collectives.all_to_all(tensor(size + 1), tensor(size + 1)), Error);
  }
  EXPECT_THROW(collectives.reduce_scatter(data, tensor(5)), Error);
  EXPECT_THROW(collectives.all_gather(tensor(5), data), Error);
  EXPECT_THROW(collectives.split({}), Error);
  EXPECT_THROW(control.split({}), Error);
  if (size > 1) {
    EXPECT_THROW(collectives.set_nodes({}), Error);
  }
  EXPECT_THROW(control.broadcast("text", -1), Error);
}

TEST_F(MpiCollectivesTest, DisagreementIsTheSameErrorOnAllRanks) {
  check_equal(control, "the configuration", "a = 1\nb = 2\n");
  if (size == 1) {
    return;
  }
  std::string message;
  const bool odd = rank == size - 1;
  try {
    check_equal(control, "the configuration", odd ? "a = 1\nb = 3\n" : "a = 1\nb = 2\n",
                ExitCode::kData);
  } catch (const Error& error) {
    message = error.what();
    EXPECT_EQ(error.code(), ExitCode::kData);
  }
  EXPECT_NE(message.find(str("rank ", size - 1, " differs from rank 0")), std::string::npos)
      << message;
  EXPECT_NE(message.find("\"b = 2\""), std::string::npos) << message;
  EXPECT_NE(message.find("\"b = 3\""), std::string::npos) << message;
  for (const std::string& other : control.all_gather(message)) {
    EXPECT_EQ(other, message);
  }
}

TEST_F(MpiCollectivesTest, AnErrorOfOneRankIsThatOfAll) {
  for (int failing = 0; failing < size; ++failing) {
    std::string message;
    try {
      agree(control, [&] {
        if (rank == failing) {
          fail(ExitCode::kData, "no such file");
        }
      });
    } catch (const AgreedError& error) {
      message = error.what();
      EXPECT_EQ(error.code(), ExitCode::kData);
    }
    // With 1 rank there is no rank to name.
    EXPECT_EQ(message, size == 1 ? "no such file" : str("rank ", failing, ": no such file"));
  }
}

TEST(World, KnowsItsPlace) {
  World& world = test_world();
  EXPECT_EQ(world.rank(), world.control().rank());
  EXPECT_EQ(world.size(), world.control().size());
  int on_this_host = 0;
  for (const std::string& host : world.control().all_gather(world.host())) {
    on_this_host += host == world.host();
  }
  EXPECT_EQ(world.local_size(), on_this_host);
  EXPECT_GE(world.local_rank(), 0);
  EXPECT_LT(world.local_rank(), world.local_size());
}

// Open MPI reads it when it starts.
TEST(World, TellsOpenMpiToSendUnasked) {
  if (test_world().size() > 1) {
    EXPECT_STREQ(std::getenv("OMPI_MCA_btl_tcp_flags"), "send,inplace");
  }
}

}  // namespace
}  // namespace tandem::testing
