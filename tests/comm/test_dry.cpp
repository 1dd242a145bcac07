// Dry streams, memory, collectives and control messages, which only count.
#include <array>

#include "comm/sharding/group.h"
#include "comm/transport/dry_collectives.h"
#include "comm/transport/local_control.h"
#include "layers/batchnorm2d/running_statistics.h"
#include "layers/models/mlp.h"
#include "layers/models/resnet.h"
#include "src/device/copy.h"
#include "src/device/dispatch.h"
#include "tests/support/harness.h"
#include "tests/support/small_transformer.h"

namespace tandem::testing {
namespace {

constexpr Speed kSpeed = {.flops_per_s = 100, .bytes_per_s = 10, .launch_s = 0.5};
constexpr Network kNetwork = {{.latency_s = 1, .bytes_per_s = 8},
                              {.latency_s = 10, .bytes_per_s = 4}};

TEST(DryStream, WorkTakesTimeByItsRates) {
  const Stream stream = Stream::dry(Device::kCuda, kSpeed);
  EXPECT_TRUE(stream.is_dry());
  EXPECT_EQ(stream.device(), Device::kCuda);
  on_device(stream, {.flops = 200, .bytes = 30}, [](auto) {});
  EXPECT_EQ(stream.clock().now_s, 2 + 3 + 0.5);
  EXPECT_EQ(stream.clock().work.flops, 200);
  EXPECT_EQ(stream.clock().waited_s, 0);
}

TEST(DryStream, RunsNoKernelsAndNoHostFunctions) {
  for (const Device device : {Device::kCpu, Device::kCuda}) {
    Stream stream = Stream::dry(device, kSpeed);
    on_device(stream, {}, [](auto) { FAIL(); });
    on_device(stream, {}, DType::kBf16, []<class T>(auto) { FAIL(); });
    stream.submit([] { FAIL(); });
    EXPECT_EQ(stream.clock().calls, 2);
  }
}

// 3 s of computing, then 5 s of communication during 4 s of computing: 1 s is not hidden.
TEST(DryStream, WhatAnotherStreamHidesIsNotWaitedFor) {
  Stream compute = Stream::dry(Device::kCpu, kSpeed), communication = Stream::dry(Device::kCpu, {});
  compute.clock().advance(3);
  communication.wait(compute.record());
  communication.clock().advance(5);
  const Event there = communication.record(), begin = compute.record();
  compute.clock().advance(4);
  compute.wait(there);
  EXPECT_EQ(compute.clock().now_s, 8);
  EXPECT_EQ(compute.clock().waited_s, 1);
  EXPECT_EQ(communication.clock().waited_s, 3);
  EXPECT_EQ(compute.record().seconds_since(begin), 5);
  EXPECT_TRUE(there.reached());
  compute.wait(begin);  // long past
  compute.wait(Event());
  EXPECT_EQ(compute.clock().now_s, 8);
}

TEST(DryStream, AnOtherStreamHasNoClock) {
  const Stream stream = Stream::compute(Device::kCpu);
  EXPECT_FALSE(stream.is_dry());
  EXPECT_THROW(stream.clock(), Error);
}

// The work that the ops of a training pass charge, in their order.
struct OpWork {
  std::string name;
  Work work;
  int64_t calls;
};
struct PassWork {
  std::vector<OpWork> forward, backward;
};

// Attention counts as a product.
Work operator-(const Work& a, const Work& b) {
  return {.flops = a.flops + a.attention - b.flops - b.attention, .bytes = a.bytes - b.bytes};
}

PassWork work_of(Model& model, const Shape& input, DType input_type, int64_t targets) {
  Stream stream = Stream::dry(Device::kCpu, kSpeed);
  Memory memory(stream);
  const auto empty = [&](const Shape& shape, DType dtype) {
    return Tensor::empty(memory, shape, dtype, MemoryClass::kParameters);
  };
  for (ParamId id = 0; Parameter * parameter : parameters_of(model)) {
    parameter->id = id++;
    parameter->value = empty(parameter->shape, DType::kF32);
    parameter->grad = empty(parameter->shape, DType::kF32);
  }
  for (RunningStatistics* statistics : model.statistics()) {
    statistics->sum = empty({2, statistics->channels}, DType::kF32);
  }
  PassWork all;
  DryClock before = stream.clock();
  Tape tape({}, [&](const Op& op, Pass pass) {
    if (op.name() == "add" || op.name().starts_with("block_")) {
      return;  // often part of the next op's kernel, and backward hands its gradient on
    }
    (pass == Pass::kForward ? all.forward : all.backward)
        .push_back({std::string(op.name()), stream.clock().work - before.work,
                    stream.clock().calls - before.calls});
    before = stream.clock();
  });
  const StepNumbers numbers;  // nobody reads them
  Context context{
      .stream = stream, .memory = memory, .tape = &tape, .numbers = &numbers, .training = true};
  const Variable losses =
      model.loss(context, empty(input, input_type), empty({targets}, DType::kI32)).losses;
  tape.backward(context, losses, empty(losses.shape(), losses.dtype()));
  return all;
}

double flops_of(const std::vector<OpWork>& ops) {
  double flops = 0;
  for (const OpWork& op : ops) {
    flops += op.work.flops;
  }
  return flops;
}

// In forward, the products are those of the model's own formula. Backward has two for each of them,
// except that attention has five for two, and that an image needs no gradient.
void expect_all_work(Model& model, const Shape& input, DType input_type, int64_t targets) {
  const PassWork work = work_of(model, input, input_type, targets);
  EXPECT_EQ(flops_of(work.forward), model.flops_per_sample() * static_cast<double>(input[0]) / 3);
  ASSERT_EQ(work.backward.size(), work.forward.size());
  bool is_first_product = true;
  for (size_t i = 0; i < work.forward.size(); ++i) {
    const OpWork &forward = work.forward[i], &backward = work.backward[work.forward.size() - 1 - i];
    SCOPED_TRACE(str("op ", i, ": ", forward.name));
    EXPECT_EQ(backward.name, forward.name);
    EXPECT_GT(forward.calls, 0);
    EXPECT_GT(backward.calls, 0);
    EXPECT_GT(forward.work.bytes, 0);
    EXPECT_GT(backward.work.bytes, 0);
    const bool multiplies =
        forward.name == "linear" || forward.name == "conv2d" || forward.name == "attention";
    EXPECT_EQ(forward.work.flops > 0, multiplies);
    if (multiplies) {
      const bool has_no_input_gradient = is_first_product && input_type == DType::kF32;
      EXPECT_EQ(backward.work.flops, forward.work.flops * (has_no_input_gradient         ? 1
                                                           : forward.name == "attention" ? 2.5
                                                                                         : 2));
      is_first_product = false;
    }
  }
}

TEST(DryStream, EveryOpOfEveryModelSaysWhatItDoes) {
  for (const bool llama : {false, true}) {
    Transformer transformer(small(llama));
    expect_all_work(transformer, {3, 6}, DType::kI32, 18);
  }
  const auto resnet = make_resnet({.depth = 8, .in_channels = 3, .height = 9, .width = 9});
  expect_all_work(*resnet, {2, 9, 9, 3}, DType::kF32, 2);
  Mlp mlp(
      {.image_height = 5, .image_width = 4, .channels = 3, .layers = 2, .width = 16, .classes = 7});
  expect_all_work(mlp, {2, 5, 4, 3}, DType::kF32, 2);
}

// The same requests on a device and on a dry stream for it give the same sizes, reuse and peaks.
TEST(DryMemory, CountsAsTheDevicesDoes) {
  for_each_device([](Device device) {
    Stream real = Stream::compute(device), dry = Stream::dry(device, kSpeed);
    std::vector<MemoryUse> uses;
    std::vector<int64_t> from_system;
    for (const Stream* stream : {&real, &dry}) {
      Memory memory(*stream);
      EXPECT_EQ(memory.is_dry(), stream->is_dry());
      EXPECT_EQ(memory.device(), device);
      const Tensor kept = Tensor::zeros(memory, {1001}, DType::kBf16, MemoryClass::kGradients);
      for (const int64_t size : {1, 70, 1 << 20, 999999, 70, 0}) {
        const Tensor a = Tensor::empty(memory, {size}, DType::kF32, MemoryClass::kActivations);
        const Tensor b = Tensor::empty(memory, {size}, DType::kU8, MemoryClass::kWorkspace);
        EXPECT_TRUE(a.elements() == 0 || b.elements() == 0 || a.raw() != b.raw());
        EXPECT_EQ(reinterpret_cast<uintptr_t>(a.raw()) % 64, 0u);
      }
      for (int i = 0; i < kMemoryClasses; ++i) {
        uses.push_back(memory.use(static_cast<MemoryClass>(i)));
      }
      uses.push_back(memory.total());
      from_system.push_back(memory.system_allocations());
    }
    for (size_t i = 0; i < uses.size() / 2; ++i) {
      EXPECT_EQ(uses[i].bytes, uses[i + uses.size() / 2].bytes);
      EXPECT_EQ(uses[i].peak_bytes, uses[i + uses.size() / 2].peak_bytes);
    }
    EXPECT_EQ(from_system[0], from_system[1]);
  });
}

TEST(DryMemory, HasNoLimitAndNoContents) {
  Stream stream = Stream::dry(Device::kCuda, kSpeed);
  Memory memory(stream);
  const Tensor huge = Tensor::zeros(memory, {int64_t{1} << 45}, DType::kF32, MemoryClass::kData);
  const Tensor other = Tensor::empty(memory, huge.shape(), DType::kF32, MemoryClass::kData);
  copy(stream, huge, other);
  zero(stream, other);
  EXPECT_EQ(memory.total().bytes, int64_t{2} << 47);
  Memory host(Device::kCpu);
  const Tensor small = huge.slice(5, 3);
  EXPECT_EQ(copied(stream, small, host).as<float>()[2], 0);
}

std::unique_ptr<DryCollectives> four_ranks(int rank, bool two_nodes) {
  auto world = std::make_unique<DryCollectives>(rank, 4, Device::kCpu, kSpeed, kNetwork);
  if (two_nodes) {
    world->set_nodes(std::array{0, 0, 1, 1});
  }
  return world;
}

class DryRanks : public ::testing::Test {
 protected:
  Tensor of(int64_t elements) {
    return Tensor::empty(memory_, {elements}, DType::kF32, MemoryClass::kStaging);
  }
  Stream stream_ = Stream::dry(Device::kCpu, kSpeed);
  Memory memory_{stream_};
};

TEST_F(DryRanks, CountARingsBytes) {
  auto world = four_ranks(1, false);
  world->all_reduce(of(10), Traffic::kAllReduce);  // shards of 3, 3, 2, 2: rank 1 sends 20 - 3 - 2
  EXPECT_EQ(world->wire().of(Traffic::kAllReduce), (WireCount::Bytes{15 * 4, 0}));
  world->all_reduce(of(4), Traffic::kControl);
  EXPECT_EQ(world->wire().of(Traffic::kControl).total(), 6 * 4);
  world->reduce_scatter(of(40), of(10));
  world->all_gather(of(10), of(40));
  EXPECT_EQ(world->wire().of(Traffic::kReduceScatter).total(), 120);
  EXPECT_EQ(world->wire().of(Traffic::kAllGather).total(), 120);
  EXPECT_EQ(world->wire().collectives, 3);
  EXPECT_EQ(world->wire().payload().total(), 60 + 240);
}

TEST_F(DryRanks, KnowWhatLeavesTheNode) {
  auto first = four_ranks(0, true), second = four_ranks(1, true);
  for (DryCollectives* world : {first.get(), second.get()}) {
    world->all_gather(of(10), of(40));
    world->all_to_all(of(40), of(40));
  }
  EXPECT_EQ(first->wire().of(Traffic::kAllGather), (WireCount::Bytes{120, 0}));
  EXPECT_EQ(second->wire().of(Traffic::kAllGather), (WireCount::Bytes{0, 120}));
  EXPECT_EQ(first->wire().of(Traffic::kAllToAll), (WireCount::Bytes{40, 80}));
  const std::array<Range, 4> sent{{{0, 1}, {1, 3}, {3, 6}, {6, 10}}}, received{{{0, 1}}};
  first->all_to_all_v(of(10), sent, of(1), received, 40);
  EXPECT_EQ(first->wire().of(Traffic::kAllToAll), (WireCount::Bytes{40 + 2 * 4, 80 + 7 * 4}));

  const auto inside = second->split(std::array{0, 0, 1, 1});
  EXPECT_EQ(inside->rank(), 1);
  EXPECT_EQ(inside->size(), 2);
  inside->all_gather(of(10), of(20));
  EXPECT_EQ(inside->wire().payload(), (WireCount::Bytes{40, 0}));
  const auto between = second->split(std::array{0, 1, 0, 1});
  EXPECT_EQ(between->rank(), 0);
  between->all_gather(of(10), of(20));
  EXPECT_EQ(between->wire().payload(), (WireCount::Bytes{0, 40}));
}

TEST_F(DryRanks, TakeTheirTime) {
  const auto seconds_of = [&](Collectives& ranks) {
    const double before = ranks.stream().clock().now_s;
    ranks.all_gather(of(10), of(10 * ranks.size()));
    return ranks.stream().clock().now_s - before;
  };
  // Three of a ring's four links, of 1 s each; 120 bytes at 8 bytes a second.
  EXPECT_EQ(seconds_of(*four_ranks(0, false)), 3 + 15);
  // Three quarters of two links inside nodes and two between: 22 * 3 / 4 s; 120 bytes at 4 a
  // second.
  auto world = four_ranks(0, true);
  EXPECT_EQ(seconds_of(*world), 16.5 + 30);
  // 40 bytes each. Inside a node each rank has its own link; between nodes two ranks share one.
  EXPECT_EQ(seconds_of(*world->split(std::array{0, 0, 1, 1})), 1 + 5);
  EXPECT_EQ(seconds_of(*world->split(std::array{0, 1, 0, 1})), 10 + 20);
  EXPECT_EQ(world->stream().clock().now_s, 46.5 + 6 + 30);          // splits share the stream
  EXPECT_EQ(seconds_of(*world->split(std::array{0, 1, 2, 3})), 0);  // alone
}

TEST_F(DryRanks, ShortMessagesMayHaveFiguresOfTheirOwn) {
  const Link link{.latency_s = 8,
                  .bytes_per_s = 8,
                  .short_below = 61,
                  .short_latency_s = 1,
                  .short_bytes_per_s = 4};
  DryCollectives world(0, 4, Device::kCpu, kSpeed, {.inside = link, .between = {}});
  const auto seconds_of = [&](auto collective) {
    const double before = world.stream().clock().now_s;
    collective();
    return world.stream().clock().now_s - before;
  };
  // Three links. Each pass of an all_reduce sends 60 of the 80 bytes.
  EXPECT_EQ(seconds_of([&] { world.all_reduce(of(20), Traffic::kAllReduce); }), 2 * (3 + 15));
  EXPECT_EQ(seconds_of([&] { world.all_gather(of(5), of(20)); }), 3 + 15);
  EXPECT_EQ(seconds_of([&] { world.all_gather(of(10), of(40)); }), 24 + 15);
  EXPECT_EQ(seconds_of([&] { world.all_to_all(of(20), of(20)); }), 1 + 15);
  EXPECT_EQ(seconds_of([&] { world.all_to_all(of(40), of(40)); }), 8 + 15);
}

// bf16 is added and converted by kernels, on the stream of the collectives.
TEST_F(DryRanks, SumsOfBf16TakeTimeByTheSpeedOfTheDevice) {
  const auto seconds_of = [&](bool two_nodes, Sharing sharing) {
    auto world = four_ranks(0, two_nodes);
    LocalControl control(0, 4);
    const std::vector<int> nodes =
        two_nodes ? std::vector<int>{0, 0, 1, 1} : std::vector<int>{0, 0, 0, 0};
    const Group ranks(control, *world, memory_, nodes, sharing);
    const double before = world->stream().clock().now_s;
    ranks.reduce_scatter(
        Tensor::empty(memory_, {40}, DType::kBf16, MemoryClass::kStaging),
        Tensor::empty(memory_, {40 / ranks.parts()}, DType::kF32, MemoryClass::kStaging));
    return world->stream().clock().now_s - before;
  };
  // all_to_all: 60 bytes at 8 a second, and 1 s. The sum reads 80 bytes and writes 40, at 10 a
  // second, with one launch.
  EXPECT_EQ(seconds_of(false, Sharing::kWorld), 1 + 7.5 + 12 + 0.5);
  // Inside the node: 40 bytes; the sum reads 80 and writes 40. Between the nodes, over a shared
  // link of 4 bytes a second: 20 bytes; the sum reads 40 and writes 20; all_gather of 20. Then 20
  // elements are converted: 40 bytes to 80.
  const double inside = 1 + 5 + 12 + 0.5, between = 10 + 10 + 6 + 0.5 + 10 + 10;
  EXPECT_EQ(seconds_of(true, Sharing::kNode), inside + between + 12 + 0.5);
}

TEST_F(DryRanks, AnswerControlMessagesForAll) {
  LocalControl world(2, 4);
  EXPECT_EQ(world.sum(std::array{1.5, 2.0}), (std::vector<double>{6, 8}));
  EXPECT_EQ(world.all_gather("host"), std::vector<std::string>(4, "host"));
  EXPECT_EQ(world.broadcast("text", 1), "text");
  EXPECT_THROW(world.broadcast("text", 4), Error);
  const auto odd = world.split(std::array{1, 0, 1, 1});
  EXPECT_EQ(odd->rank(), 1);
  EXPECT_EQ(odd->size(), 3);
}

}  // namespace
}  // namespace tandem::testing
