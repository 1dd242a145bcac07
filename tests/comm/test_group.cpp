// Runs on every rank of a job of 1 to 4 ranks (tests/support/mpi_main.cpp), with every transport:
// MPI with tensors in host memory, MPI with tensors in GPU memory, and NCCL.
#include <cmath>
#include <map>

#include "src/kernels/reduce.h"
#include "tests/comm/group_test.h"

namespace tandem::testing {
namespace {

// --- Who has which shard ---

TEST_F(GroupTest, EveryPartRestsOnceInEachReplica) {
  for_each_group([&](const Group& ranks, const Nodes&, Device) {
    ASSERT_EQ(ranks.parts() * ranks.replicas(), size);
    std::vector<int> owners(static_cast<size_t>(size), 0);
    for (const std::string& text :
         ranks.control().all_gather(str(ranks.replica() * ranks.parts() + ranks.part()))) {
      ++owners.at(static_cast<size_t>(std::stoi(text)));
    }
    EXPECT_EQ(owners, std::vector<int>(static_cast<size_t>(size), 1));
  });
}

TEST_F(GroupTest, PartsOfTwoNodesWithTwoRanks) {
  if (size != 4) {
    GTEST_SKIP() << "needs four ranks";
  }
  const auto at = [&](const Nodes& nodes, Sharing sharing) {
    const Group ranks(world.control, world.collectives, test_memory(), nodes, sharing);
    EXPECT_FALSE(ranks.is_flat());
    EXPECT_EQ(ranks.node_size(), 2);
    return std::vector<int>{ranks.parts(), ranks.part(), ranks.replicas(), ranks.replica()};
  };
  // Chunk `local` of the array, and the node's shard of that chunk.
  const int neighbours[] = {0, 2, 1, 3}, dealt[] = {0, 1, 2, 3};
  EXPECT_EQ(at({0, 0, 1, 1}, Sharing::kWorld), (std::vector<int>{4, neighbours[rank], 1, 0}));
  EXPECT_EQ(at({0, 1, 0, 1}, Sharing::kWorld), (std::vector<int>{4, dealt[rank], 1, 0}));
  EXPECT_EQ(at({0, 0, 1, 1}, Sharing::kNode), (std::vector<int>{2, rank % 2, 2, rank / 2}));
  EXPECT_EQ(at({0, 1, 0, 1}, Sharing::kNode), (std::vector<int>{2, rank / 2, 2, rank % 2}));
}

TEST_F(GroupTest, FlatWhereThereAreNoTwoLevels) {
  const Group one_node(world.control, world.collectives, test_memory(),
                       Nodes(static_cast<size_t>(size), 0));
  EXPECT_TRUE(one_node.is_flat());
  EXPECT_EQ(one_node.node_size(), size);
  EXPECT_EQ(one_node.part(), rank);
  const Group alone(world.control, world.collectives, test_memory(), everybody(), Sharing::kNode);
  EXPECT_TRUE(alone.is_flat());
  EXPECT_EQ(alone.node_size(), 1);
  EXPECT_EQ(alone.parts(), 1);
  EXPECT_EQ(alone.replica(), rank);
}

TEST_F(GroupTest, NodesOfDifferentSizesAreFlat) {
  if (size < 3) {
    GTEST_SKIP() << "needs three ranks";
  }
  Nodes uneven(static_cast<size_t>(size), 0);
  uneven.back() = 1;
  const Group ranks(world.control, world.collectives, test_memory(), uneven);
  EXPECT_TRUE(ranks.is_flat());
  EXPECT_EQ(ranks.parts(), size);
  EXPECT_EQ(ranks.node_size(), 0);
  try {
    const Group shared(world.control, world.collectives, test_memory(), uneven, Sharing::kNode);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("dist.shard = node"), std::string::npos);
  }
}

TEST_F(GroupTest, NodesOfHostsOrOfNeighbours) {
  Nodes by_host, by_two;
  for (int r = 0; r < size; ++r) {
    by_host.push_back(r % 2);
    by_two.push_back(r / 2);
  }
  EXPECT_EQ(nodes_of(world.control, rank % 2 == 0 ? "z" : "a", 0), by_host);
  if (size % 2 == 0) {
    EXPECT_EQ(nodes_of(world.control, "same", 2), by_two);
  }
  EXPECT_EQ(nodes_of(world.control, "same", size), Nodes(static_cast<size_t>(size), 0));
  for (const int wrong : {size + 1, -1}) {
    EXPECT_THROW(nodes_of(world.control, "same", wrong), Error);
  }
}

// --- Sums without rounding ---

// In f32 another order gives other bits.
TEST_F(GroupTest, SumsInOrderHaveTheSameBitsEverywhere) {
  const auto number = [](int from, int64_t i) {
    return static_cast<float>(std::sin(static_cast<double>(from * 1000 + i)));
  };
  for_each_group([&](const Group& ranks, const Nodes&, Device device) {
    const int64_t n = int64_t{12} * size;
    const Tensor sum = made<float>(n, device, [&](int64_t i) { return number(rank, i); });
    const WireCount before = ranks.wire();
    ranks.stream().wait(test_stream(device).record());
    ranks.all_reduce_in_order(sum);
    ranks.wait(ranks.stream().record());
    EXPECT_EQ((ranks.wire() - before).payload().total(), 2 * (size - 1) * n / size * 4);
    const Tensor host = to_host(sum);
    for (int64_t i = 0; i < n; ++i) {
      float expected = number(0, i);
      for (int from = 1; from < size; ++from) {
        expected += number(from, i);
      }
      ASSERT_EQ(host.data<float>()[i], expected) << i;
    }
  });
}

TEST_F(GroupTest, SumsAndGathersAreThoseOfAllRanks) {
  for_each_group([&](const Group& ranks, const Nodes&, Device device) {
    for (const DType dtype : {DType::kF32, DType::kI64}) {
      for (const int64_t n : {1, 3, 501}) {
        SCOPED_TRACE(str(n, " elements a rank of ", name_of(dtype)));
        const int64_t all = n * size, part = all / ranks.parts(), first = part * ranks.part();
        const Tensor sum = numbers(dtype, everybody(), 0, all, device);

        const Tensor whole = numbers(dtype, {rank}, 0, all, device);
        sent(ranks, device, [&] { ranks.all_reduce(whole); });
        expect_same(whole, sum, "all_reduce");

        for (const bool in_place : {false, true}) {
          const Tensor in = numbers(dtype, {rank}, 0, all, device);
          const Tensor out = in_place ? in.slice(first, part) : unset(dtype, part, device);
          const Tensor back = unset(dtype, all, device);
          sent(ranks, device, [&] {
            ranks.reduce_scatter(in, out);
            ranks.all_gather(out, back);
          });
          expect_same(out, sum.slice(first, part), "reduce_scatter");
          expect_same(back, sum, "all_gather");
          sent(ranks, device, [&] {
            ranks.reduce_scatter(back, back.slice(first, part));
            ranks.all_gather(back.slice(first, part), back);
          });
          std::vector<int> often;  // before, every rank had the sum
          for (int i = 0; i < size; ++i) {
            often.insert(often.end(), static_cast<size_t>(size), i);
          }
          expect_same(back, numbers(dtype, often, 0, all, device), "in place");
        }
      }
    }
  });
}

TEST_F(GroupTest, WrongArgumentsAreErrorsBeforeAnythingIsSent) {
  const Group ranks(world.control, world.collectives, test_memory(),
                    Nodes(static_cast<size_t>(size), 0));
  const auto tensor = [](int64_t n, DType dtype) {
    return Tensor::zeros(test_memory(), {n}, dtype, MemoryClass::kGradients);
  };
  const Tensor whole = tensor(4 * size, DType::kBf16);
  EXPECT_THROW(ranks.reduce_scatter(whole, tensor(4, DType::kBf16)), Error) << "it is f32";
  EXPECT_THROW(ranks.reduce_scatter(whole, tensor(5, DType::kF32)), Error);
  EXPECT_THROW(ranks.all_gather(tensor(4, DType::kF32), whole), Error);
  if (size > 1) {
    EXPECT_THROW(ranks.all_reduce(tensor(size + 1, DType::kF32)), Error);
  }
}

// --- Sums of bf16 ---

// A number of eight bits with a magnitude from 2^-12 to 2^12; both differ from rank to rank. f32
// holds 24 bits, so many sums are rounded and show the order of their addends.
Bf16 addend(int rank, int64_t i) {
  uint64_t mixed = static_cast<uint64_t>(4 * i + rank + 1) * 0x9e37'79b9'7f4a'7c15u;
  mixed = (mixed ^ (mixed >> 29)) * 0xbf58'476d'1ce4'e5b9u;
  const float mantissa = static_cast<float>(128 + (mixed >> 57)) * (mixed >> 56 & 1 ? -1.0f : 1.0f);
  return Bf16(std::ldexp(mantissa, static_cast<int>((mixed >> 32) % 25) - 19));
}

// The sum of element i over the ranks of `nodes`. Each node's sum is taken in rank order and
// rounded; then these are summed without rounding. When flat, the sum is taken in rank order
// without rounding.
float reference(const Nodes& nodes, bool flat, int64_t i) {
  std::map<int, std::vector<Bf16>> by_node;
  for (size_t r = 0; r < nodes.size(); ++r) {
    by_node[flat ? 0 : nodes[r]].push_back(addend(static_cast<int>(r), i));
  }
  const auto sum = [](const std::vector<Bf16>& addends) {
    float total = addends[0];
    for (size_t a = 1; a < addends.size(); ++a) {
      total += addends[a];
    }
    return total;
  };
  if (flat) {
    return sum(by_node[0]);
  }
  std::vector<Bf16> sums;
  for (const auto& [node, addends] : by_node) {
    sums.push_back(Bf16(sum(addends)));
  }
  return sum(sums);
}

TEST_F(GroupTest, Bf16IsAddedInF32InRankOrder) {
  for_each_group([&](const Group& ranks, const Nodes& nodes, Device device) {
    // The scratch memory grows, and then serves smaller sums.
    for (const int64_t n : {8, 1, 2003, 40}) {
      SCOPED_TRACE(str(n, " elements a rank"));
      const int64_t all = n * size, part = all / ranks.parts(), first = part * ranks.part();
      const auto sum = [&](int64_t i) { return reference(nodes, ranks.is_flat(), i); };
      const auto rounded = [&](int64_t i) { return Bf16(sum(i)); };
      const auto input = [&] {
        return made<Bf16>(all, device, [&](int64_t i) { return addend(rank, i); });
      };
      const Tensor whole = input(), in = input(), out = unset(DType::kF32, part, device);
      sent(ranks, device, [&] {
        ranks.all_reduce(whole);
        ranks.reduce_scatter(in, out);
      });
      expect_same(whole, made<Bf16>(all, device, rounded), "all_reduce");
      // A shard that several ranks hold was summed between them in bf16.
      const bool twice = ranks.replicas() > 1 && size > 1;
      expect_same(out,
                  made<float>(part, device,
                              [&](int64_t i) {
                                return twice ? float{rounded(first + i)} : sum(first + i);
                              }),
                  "reduce_scatter");
    }
  });
}

// The scratch memory must grow while it is still in use.
TEST_F(GroupTest, Bf16SumsFollowEachOtherAtOnce) {
  for_each_group([&](const Group& ranks, const Nodes& nodes, Device device) {
    std::vector<Tensor> tensors;
    for (const int64_t n : {500, 2000, 100}) {
      tensors.push_back(made<Bf16>(n * size, device, [&](int64_t i) { return addend(rank, i); }));
    }
    sent(ranks, device, [&] {
      for (const Tensor& tensor : tensors) {
        ranks.all_reduce(tensor);
      }
    });
    for (const Tensor& tensor : tensors) {
      expect_same(tensor,
                  made<Bf16>(tensor.elements(), device,
                             [&](int64_t i) { return Bf16(reference(nodes, ranks.is_flat(), i)); }),
                  "all_reduce");
    }
  });
}

TEST(SumParts, AddsInOrder) {
  for_each_device([](Device device) {
    constexpr int64_t kParts = 3;
    Stream& stream = test_stream(device);
    for (const int64_t n : {1, 7, 8, 2048, 5001}) {
      for (const int64_t offset : {0, 1}) {  // from 16-byte boundaries
        SCOPED_TRACE(str(n, " elements, offset ", offset));
        const Tensor from = made<Bf16>(kParts * n + offset, device, [&](int64_t i) {
          return addend(static_cast<int>((i - offset) / n), (i - offset) % n);
        });
        const auto sum = [](int64_t i) { return reference(Nodes(kParts, 0), true, i); };
        const Tensor wide = to_device(unset(DType::kF32, n, Device::kCpu), device);
        const Tensor narrow = to_device(unset(DType::kBf16, n, Device::kCpu), device);
        on_device(stream, {}, [&](auto tag) {
          const Bf16* parts = from.data<Bf16>() + offset;
          kernels::sum_parts(tag, kParts, n, parts, wide.data<float>());
          kernels::sum_parts(tag, kParts, n, parts, narrow.data<Bf16>());
        });
        expect_same(wide, made<float>(n, device, sum), "f32");
        expect_same(narrow, made<Bf16>(n, device, [&](int64_t i) { return Bf16(sum(i)); }), "bf16");
      }
    }
  });
}

// --- What is sent ---

TEST_F(GroupTest, BetweenNodesGoesTheShareOfOneRank) {
  for_each_group([&](const Group& ranks, const Nodes&, Device device) {
    if (ranks.is_flat()) {
      return;
    }
    const int64_t g = ranks.node_size(), n = size / g;
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kI8}) {
      SCOPED_TRACE(name_of(dtype));
      const EightBits eight_bits = dtype == DType::kI8 ? EightBits(BlockRounding{}) : EightBits();
      // E' bytes, n nodes of g ranks: for a reduce-scatter, a rank sends (g - 1)/g E' inside its
      // node and (n - 1)/n E'/g between nodes; for an all-gather, as much. Eight bits take 132 of
      // f32's 512 bytes, and only between nodes.
      const Tensor whole = numbers(DType::kF32, {rank}, 0, 128 * size, device);
      const Tensor in = dtype == DType::kBf16 ? unset(dtype, 128 * size, device) : whole;
      const int64_t bytes = in.bytes();
      const int64_t inside = (g - 1) * bytes / g;
      const int64_t between = (n - 1) * bytes / (n * g) * (eight_bits ? 132 : 512) / 512;
      const Traffic summing = dtype == DType::kBf16 ? Traffic::kAllToAll : Traffic::kReduceScatter;

      const WireCount sum = sent(ranks, device, [&] { ranks.all_reduce(in, eight_bits); });
      EXPECT_EQ(sum.payload(), (WireCount::Bytes{2 * inside, 2 * between}));
      EXPECT_EQ(sum.of(summing).inside, inside);
      EXPECT_EQ(sum.of(Traffic::kAllGather).inside, inside);
      EXPECT_EQ(sum.of(Traffic::kControl).total(), 0);

      const bool shared_by_all = ranks.replicas() == 1;
      const int64_t part = in.elements() / ranks.parts();
      const Tensor out = unset(DType::kF32, part, device);
      const WireCount parts =
          sent(ranks, device, [&] { ranks.reduce_scatter(in, out, eight_bits); });
      EXPECT_EQ(parts.payload(), (WireCount::Bytes{inside, shared_by_all ? between : 2 * between}));

      const Tensor own = in.slice(part * ranks.part(), part);
      const WireCount gathering =
          sent(ranks, device, [&] { ranks.all_gather(own, in, eight_bits); });
      EXPECT_EQ(gathering.payload(), (WireCount::Bytes{inside, shared_by_all ? between : 0}));
      EXPECT_EQ(gathering.of(Traffic::kAllGather), gathering.payload());
    }
  });
}

TEST_F(GroupTest, AFlatRingSendsAllThatItSendsToItsNeighbour) {
  for_each_way([&](const Ranks& way, Device device) {
    const Group ranks(way.control, way.collectives, test_memory(device), everybody());
    const Tensor data = numbers(DType::kF32, {rank}, 0, 128 * size, device);
    const WireCount wire = sent(ranks, device, [&] { ranks.all_reduce(data); });
    EXPECT_EQ(wire.payload(), (WireCount::Bytes{0, 2 * (size - 1) * data.bytes() / size}));
  });
}

}  // namespace
}  // namespace tandem::testing
