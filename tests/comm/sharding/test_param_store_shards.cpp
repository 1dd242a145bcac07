// What the store hands out: shards, extents and weights. Runs on every rank of a job of 1 to 4
// ranks (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>

#include "src/kernels/reduce.h"
#include "tests/comm/sharding/store_model.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

Ranks world() { return test_ranks(); }

TEST(ParamStoreShards, ShardsCoverEverythingOnce) {
  TestContext test;
  Memory memory{Device::kCpu};
  Group data{world().control, world().collectives, memory,
             std::vector<int>(static_cast<size_t>(world().size()), 0)};
  for (int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(str("stage ", zero));
    StoreModel model = small_model();
    ParamStore store(model.blocks, data, test.stream, memory, {.bucket_bytes = 1500, .zero = zero});
    store.values.initialize(3);
    std::vector<std::vector<double>> all, owned;
    for (const Parameter& parameter : model.parameters) {
      all.emplace_back(static_cast<size_t>(parameter.shape.elements()), 0.0);
    }
    owned = all;
    double elements = 0;
    for (size_t shard = 0; shard < store.shards.all().size(); ++shard) {
      const Shard& flat = store.shards.all()[shard];
      EXPECT_EQ(flat.value.elements(), flat.grad.elements());
      elements += static_cast<double>(flat.value.elements());
      for (const auto& extent : store.shards.extents(shard)) {
        EXPECT_EQ(store.shards.parameter(extent).decay, flat.decay);
        for (int64_t i = 0; i < extent.count; ++i) {
          ++all[extent.parameter][extent.in_parameter + i];
        }
      }
      for (const auto& extent : store.shards.saved_extents(shard)) {
        for (int64_t i = 0; i < extent.count; ++i) {
          ++owned[extent.parameter][extent.in_parameter + i];
        }
      }
    }
    const double copies = zero == 0 ? world().size() : 1;
    EXPECT_EQ(world().control.sum({&elements, 1})[0] * 4,
              copies * static_cast<double>(store.gradients.bytes()));
    for (size_t id = 0; id < all.size(); ++id) {
      const size_t n = all[id].size();
      EXPECT_EQ(world().control.sum(all[id]), std::vector<double>(n, copies)) << id;
      EXPECT_EQ(world().control.sum(owned[id]), std::vector<double>(n, 1.0)) << id;
    }
  }
}

TEST(ParamStoreShards, NoBlockBeginsBeforeWrittenValuesAreGathered) {
  TestContext test;
  Memory memory{Device::kCpu};
  Group data{world().control, world().collectives, memory,
             std::vector<int>(static_cast<size_t>(world().size()), 0)};
  StoreModel model = small_model();
  ParamStore store(model.blocks, data, test.stream, memory, {.zero = 1});
  const auto begin = [&] { store.values.acquire(test.context, 0, Pass::kForward); };
  store.values.initialize(3);
  EXPECT_THROW(begin(), Error);
  store.values.gather();
  begin();
  store.values.outdate();
  EXPECT_THROW(begin(), Error);
}

// A shard, the list of weights and a layer all hold the same number for an element.
TEST(ParamStoreShards, WeightsAreTheMastersOfTheValues) {
  TestContext test;
  Memory memory{Device::kCpu};
  Group data{world().control, world().collectives, memory,
             std::vector<int>(static_cast<size_t>(world().size()), 0)};
  for (int zero : {0, 1, 2, 3}) {
    for (DType dtype : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(str("stage ", zero, ", ", name_of(dtype)));
      StoreModel model = small_model();
      ParamStore store(model.blocks, data, test.stream, memory,
                       {.bucket_bytes = 1500, .zero = zero, .dtype = dtype});
      store.values.initialize(3);
      store.values.gather();
      std::vector<std::vector<float>> values;
      for (BlockId block = 0; block < 4; ++block) {
        store.gradients.acquire(test.context, block, Pass::kForward);
        for (const Parameter* parameter : model.blocks[block].parameters) {
          EXPECT_EQ(parameter->value.dtype(), dtype);
          const std::vector<double> read = values_of(parameter->value);
          values.emplace_back(read.begin(), read.end());
        }
        store.gradients.release(test.context, block, Pass::kForward);
      }
      const auto expect_value = [&](const Parameter& parameter, int64_t i, float master) {
        ASSERT_EQ(values[parameter.id][i],
                  dtype == DType::kF32 ? master : static_cast<float>(Bf16(master)))
            << parameter.name << "[" << i << "]";
      };
      std::vector<double> seen(values.size(), 0.0);
      for (const ParamValues::Weights& weights : store.values.saved_weights()) {
        for (int64_t i = 0; i < weights.data.elements(); ++i) {
          expect_value(*weights.parameter, weights.offset + i, weights.data.as<float>()[i]);
        }
        seen[weights.parameter->id] += static_cast<double>(weights.data.elements());
      }
      const std::vector<double> all = world().control.sum(seen);
      for (size_t id = 0; id < all.size(); ++id) {
        EXPECT_EQ(all[id], static_cast<double>(values[id].size()));
      }
      for (size_t shard = 0; shard < store.shards.all().size(); ++shard) {
        for (const Extent& extent : store.shards.extents(shard)) {
          for (int64_t i = 0; i < extent.count; ++i) {
            expect_value(store.shards.parameter(extent), extent.in_parameter + i,
                         store.shards.all()[shard].value.as<float>()[extent.in_flat + i]);
          }
        }
      }
    }
  }
}

// Gradients are whole numbers, and the sums of their squares stay far below 2^53, so every order of
// additions gives the same bits. On two nodes of two ranks, state that is sharded inside a node
// exists twice, and state that is not sharded four times.
TEST(ParamStoreShards, TheNormCountsEachElementOnceHoweverOftenItRests) {
  TestContext test;
  Memory memory{Device::kCpu};
  const int size = world().size();
  const auto gradient = [](int rank, const Parameter& parameter, size_t i) {
    return static_cast<float>((rank + 1) * static_cast<int>(i % 101) - 3 * parameter.id);
  };
  for (Sharing sharing : {Sharing::kWorld, Sharing::kNode}) {
    const std::vector<int> nodes =
        size == 4 ? std::vector<int>{0, 0, 1, 1} : std::vector<int>(static_cast<size_t>(size), 0);
    Group data(world().control, world().collectives, memory, nodes, sharing);
    for (int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(str("stage ", zero, sharing == Sharing::kNode ? ", shared by a node" : ""));
      StoreModel model = small_model();
      ParamStore store(model.blocks, data, test.stream, memory,
                       {.bucket_bytes = 1500, .zero = zero});
      store.gradients.begin_step();
      store.gradients.begin_backward(true);
      double expected = 0;
      for (BlockId block = 3; block >= 0; --block) {
        store.gradients.acquire(test.context, block, Pass::kBackward);
        for (Parameter* parameter : model.blocks[block].parameters) {
          const auto grad = grad_target(*parameter).into.as<float>();
          for (size_t i = 0; i < grad.size(); ++i) {
            grad[i] = gradient(world().rank(), *parameter, i);
            double sum = 0;
            for (int rank = 0; rank < size; ++rank) {
              sum += gradient(rank, *parameter, i);
            }
            expected += sum * sum;
          }
          store.gradients.on_final(test.context, *parameter);
        }
        store.gradients.release(test.context, block, Pass::kBackward);
      }
      EXPECT_TRUE(store.gradients.finish_backward());
      const Tensor figures =
          Tensor::empty(memory, {1 + kReduceScratch}, DType::kF64, MemoryClass::kWorkspace);
      store.gradients.squared_norm(figures.slice(0, 1), figures.slice(1, kReduceScratch));
      EXPECT_EQ(world().control.sum({figures.data<double>(), 1})[0], expected);
    }
  }
}

// Evaluation and generation freeze a whole model, which then holds only a layout and values.
TEST(ParamStoreShards, InferenceHoldsValuesAloneInTheTypeThatLayersComputeWith) {
  TestContext test;
  Memory memory{Device::kCpu};
  Group data{world().control, world().collectives, memory,
             std::vector<int>(static_cast<size_t>(world().size()), 0)};
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    SCOPED_TRACE(name_of(dtype));
    StoreModel model = small_model();
    for (Parameter& parameter : model.parameters) {
      parameter.frozen = true;
    }
    Memory own{Device::kCpu};
    const ModelLayout layout(model.blocks, data, Device::kCpu, {});
    ParamValues values(layout, test.stream, own, StoreOptions{.dtype = dtype});
    values.initialize(7);
    EXPECT_EQ(own.total().bytes, size_of(dtype) * layout.flat().elements());
    EXPECT_EQ(own.total().bytes, own.use(MemoryClass::kParameters).bytes);
    EXPECT_EQ(model.parameters[0].value.dtype(), dtype);
  }
}

}  // namespace
}  // namespace tandem::testing
