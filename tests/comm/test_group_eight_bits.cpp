// Sums and gathers in eight bits (group.h), on every rank of a job of 1 to 4 ranks.
#include <map>

#include "src/device/copy.h"
#include "tests/comm/group_test.h"

namespace tandem::testing {
namespace {

// What rank `rank` adds to element i: a multiple of 1/8 below 128, so that sums of a node are
// exact.
float addend(int rank, int64_t i) {
  return static_cast<float>((i * 131 + rank * 577) % 2048 - 1024) / 8;
}

// The noise of a rank's messages, on a device.
Tensor noise_of(Device device, int rank) {
  const Tensor noise =
      Tensor::zeros(test_memory(device), {sizeof(BlockNoise)}, DType::kU8, MemoryClass::kData);
  const DeviceNumbers numbers(device, {.seed = 9, .step = 2});
  on_device(test_stream(device), {}, [&](auto tag) {
    kernels::make_noise(tag, numbers.get(), static_cast<uint32_t>(rank),
                        reinterpret_cast<BlockNoise*>(noise.raw()));
  });
  test_stream(device).synchronize();
  return noise;
}

// `values` as they come out of a message; noise null: rounded to nearest.
Tensor passed_on(const Tensor& values, const Tensor& noise, uint32_t turn = 0) {
  const Tensor message = unset(DType::kI32, block_words(values.elements()), Device::kCpu);
  const Tensor back = unset(DType::kF32, values.elements(), Device::kCpu);
  kernels::write_blocks(
      Cpu{}, values.elements(), values.data<float>(),
      {.noise = noise ? reinterpret_cast<BlockNoise*>(noise.raw()) : nullptr, .turn = turn},
      message.data<int32_t>());
  kernels::sum_blocks(Cpu{}, 1, values.elements(), message.data<int32_t>(), back.data<float>());
  return back;
}

// Where ranks are flat, the sum of what all send, in rank order. Otherwise each place on a node has
// its chunk, whose sums of a node are rounded by the rank that has them. `again`: the sum is
// rounded by the rank that adds it.
Tensor sum_in_eight_bits(const Nodes& nodes, bool flat, int64_t all, bool again) {
  std::map<int, std::vector<int>> on_node;  // its ranks
  for (size_t r = 0; r < nodes.size(); ++r) {
    on_node[flat ? static_cast<int>(r) : nodes[r]].push_back(static_cast<int>(r));
  }
  const int places = static_cast<int>(on_node.begin()->second.size());
  const int64_t chunk = all / places, piece = chunk / std::ssize(on_node);
  const Tensor sum = Tensor::zeros(test_memory(), {all}, DType::kF32, MemoryClass::kData);
  for (int place = 0; place < places; ++place) {
    const Tensor to = sum.slice(place * chunk, chunk);
    std::map<int, std::vector<int>> senders;  // and whose addends they have
    for (const auto& [node, ranks] : on_node) {
      senders[ranks[place]] = ranks;
    }
    for (const auto& [sender, ranks] : senders) {
      const Tensor of_node = made<float>(chunk, Device::kCpu, [&, &ranks = ranks](int64_t i) {
        float total = 0;
        for (const int rank : ranks) {
          total += addend(rank, place * chunk + i);
        }
        return total;
      });
      const Tensor sent = passed_on(of_node, noise_of(Device::kCpu, sender));
      for (int64_t i = 0; i < chunk; ++i) {
        to.data<float>()[i] += sent.data<float>()[i];
      }
    }
    int64_t first = 0;
    for (const auto& [sender, ranks] : senders) {
      const Tensor of_rank = to.slice(first, piece);
      if (again) {
        copy(test_stream(), passed_on(of_rank, noise_of(Device::kCpu, sender), 1), of_rank);
      }
      first += piece;
    }
  }
  return sum;
}

TEST_F(GroupTest, EightBitsAreSummedAsDefined) {
  for_each_group([&](const Group& ranks, const Nodes& nodes, Device device) {
    if (size == 1) {
      return;
    }
    const Tensor noise = noise_of(device, rank);
    const EightBits eight_bits = BlockRounding{.noise = reinterpret_cast<BlockNoise*>(noise.raw())};
    for (const int64_t n : {128, 640, 256}) {  // the scratch memory grows
      SCOPED_TRACE(str(n, " elements a rank"));
      const int64_t all = n * size, part = all / ranks.parts(), first = part * ranks.part();
      const auto input = [&] {
        return made<float>(all, device, [&](int64_t i) { return addend(rank, i); });
      };
      const Tensor whole = input(), in = input(), out = unset(DType::kF32, part, device);
      sent(ranks, device, [&] {
        ranks.all_reduce(whole, eight_bits);
        ranks.reduce_scatter(in, out, eight_bits);
      });
      const auto sum = [&](bool again) {
        return to_device(sum_in_eight_bits(nodes, ranks.is_flat(), all, again), device);
      };
      expect_same(whole, sum(true), "all_reduce");
      const bool twice = ranks.replicas() > 1;
      expect_same(out, sum(twice).slice(first, part), "reduce_scatter");
    }
  });
}

TEST_F(GroupTest, EightBitsAreGatheredBetweenNodes) {
  for_each_group([&](const Group& ranks, const Nodes&, Device device) {
    const int64_t all = 256 * size, part = all / ranks.parts(), first = part * ranks.part();
    const auto values = [&](int64_t from, int64_t n) {
      return made<float>(n, Device::kCpu, [&](int64_t i) { return addend(0, from + i); });
    };
    const Tensor in = to_device(values(first, part), device);
    const Tensor out = unset(DType::kF32, all, device);
    sent(ranks, device, [&] { ranks.all_gather(in, out, BlockRounding{}); });
    const bool stays_inside = ranks.parts() == 1 || (!ranks.is_flat() && ranks.replicas() > 1);
    const Tensor wanted = stays_inside ? values(0, all) : passed_on(values(0, all), Tensor());
    expect_same(out, to_device(wanted, device), "all_gather");
    expect_same(in, to_device(values(first, part), device), "the input");
  });
}

TEST_F(GroupTest, EightBitsNeedWholeBlocks) {
  const Group ranks(world.control, world.collectives, test_memory(),
                    Nodes(static_cast<size_t>(size), 0));
  if (size > 1) {
    EXPECT_THROW(ranks.all_reduce(unset(DType::kF32, 64 * size, Device::kCpu), BlockRounding{}),
                 Error);
  }
}

}  // namespace
}  // namespace tandem::testing
