// Parameters that live on different sets of ranks: matrices that are cut over two ranks, and
// parameters that both of these hold. Runs on every rank of a job of 2 or 4 ranks.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "comm/mesh.h"
#include "src/kernels/reduce.h"
#include "tests/comm/sharding/store_model.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr int kTensor = 2;

class CutBuckets : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world.size() % kTensor != 0) {
      GTEST_SKIP() << "for two or four ranks";
    }
    mesh.emplace(world.control, world.collectives, memory,
                 std::vector<int>(static_cast<size_t>(world.size()), 0), Sharing::kWorld,
                 MeshShape{.tensor = kTensor});
    for (size_t i : {0, 3}) {  // p0 is cut by columns, p3 by rows
      Parameter& parameter = model.parameters[i];
      const Shape part = parameter.shape;
      const int axis = i == 0 ? 1 : 0, index = mesh->index(Axis::kTensor);
      Shape start = part.with(0, 0).with(1, 0);
      parameter.pieces = {{parameter.name, Slice(part.with(axis, kTensor * part[axis]),
                                                 start.with(axis, index * part[axis]), part)}};
    }
  }

  // Each rank gives its own number, plus what depends on the parameter.
  static float gradient(const Parameter& parameter, int rank) {
    return static_cast<float>(parameter.id + 1) * static_cast<float>(rank + 1);
  }
  bool step(ParamStore& store) {
    GradientSync& sync = store.gradients;
    sync.begin_step();
    sync.begin_backward(true);
    for (BlockId block = 1; block >= 0; --block) {
      sync.acquire(test.context, block, Pass::kBackward);
      for (Parameter* parameter : model.blocks[static_cast<size_t>(block)].parameters) {
        std::ranges::fill(grad_target(*parameter).into.as<float>(),
                          gradient(*parameter, world.rank()));
        sync.on_final(test.context, *parameter);
      }
      sync.release(test.context, block, Pass::kBackward);
    }
    return sync.finish_backward();
  }
  bool is_cut(const Parameter& parameter) const { return !parameter.pieces.empty(); }
  // Over the ranks that hold the parameter, of which this is one.
  double sum(const Parameter& parameter) const {
    double sum = 0;
    for (int rank = 0; rank < world.size(); ++rank) {
      const bool holds = !is_cut(parameter) || rank % kTensor == world.rank() % kTensor;
      sum += holds ? gradient(parameter, rank) : 0;
    }
    return sum;
  }
  template <class F>
  void for_each_store(F body) {
    for (int zero = 0; zero <= 3; ++zero) {
      for (const char* rule : {"float", "rounded", "exact"}) {
        SCOPED_TRACE(str("stage ", zero, ", ", rule));
        const bool exact = std::string_view(rule) == "exact";
        const DType wire = std::string_view(rule) == "rounded" ? DType::kBf16 : DType::kF32;
        ParamStore store(model.blocks, mesh->model(), test.stream, memory,
                         {.zero = zero,
                          .wire_dtype = wire,
                          .exact_micro_batches = exact ? world.size() / kTensor : 0});
        store.values.initialize(1);
        store.values.gather();
        if (exact) {
          ASSERT_FALSE(step(store));  // finds the exponents
        }
        ASSERT_TRUE(step(store));
        body(store);
      }
    }
  }

  const Ranks world = test_ranks();
  TestContext test;
  Memory memory{Device::kCpu};
  std::optional<Mesh> mesh;
  StoreModel model{{{4, 6}, {5}}, {{7}, {3, 9}}};
};

TEST_F(CutBuckets, SumsAreOverTheRanksThatHoldAParameter) {
  for_each_store([&](ParamStore& store) {
    for (size_t shard = 0; shard < store.shards.all().size(); ++shard) {
      const Tensor sums = store.shards.all()[shard].grad;
      for (const Extent& extent : store.shards.extents(shard)) {
        const Parameter& parameter = store.shards.parameter(extent);
        EXPECT_EQ(values_of(sums.slice(extent.in_flat, extent.count)),
                  std::vector<double>(static_cast<size_t>(extent.count), sum(parameter)))
            << parameter.name;
      }
    }
  });
}

// Small whole numbers have exact squares.
TEST_F(CutBuckets, TheNormCountsEachElementOnce) {
  for_each_store([&](ParamStore& store) {
    double expected = 0;
    for (const Parameter& parameter : model.parameters) {
      const double mine =
          sum(parameter) * sum(parameter) * static_cast<double>(parameter.shape.elements());
      const double all =
          world.control.sum({&mine, 1})[0];  // every rank that holds it says the same
      expected += all / (is_cut(parameter) ? world.size() / kTensor : world.size());
    }
    const Tensor result = Tensor::zeros(memory, {1}, DType::kF64, MemoryClass::kData);
    const Tensor scratch =
        Tensor::zeros(memory, {kReduceScratch}, DType::kF64, MemoryClass::kWorkspace);
    store.gradients.squared_norm(result, scratch);
    EXPECT_EQ(world.control.sum({result.data<double>(), 1})[0], expected);
  });
}

// What checkpoints hold: each element of each logical tensor, from one rank, with the value that it
// has in an uncut model.
TEST_F(CutBuckets, EachElementOfALogicalTensorIsOwnedOnce) {
  StoreModel uncut{{{4, 12}, {5}}, {{7}, {6, 9}}};
  std::vector<double> expected;
  for (Parameter& parameter : uncut.parameters) {
    parameter.value = Tensor::empty(memory, parameter.shape, DType::kF32, MemoryClass::kParameters);
    initialize(parameter, 1);
    const std::vector<double> values = values_of(parameter.value);
    expected.insert(expected.end(), values.begin(), values.end());
  }
  for_each_store([&](ParamStore& store) {
    std::map<std::string, int64_t> first;  // of each tensor in `found`
    int64_t elements = 0;
    for (const Parameter& parameter : uncut.parameters) {
      first[parameter.name] = elements;
      elements += parameter.shape.elements();
    }
    std::vector<double> found(static_cast<size_t>(elements), 0.0), owners = found;
    for (const ParamValues::Weights& weights : store.values.saved_weights()) {
      const std::vector<double> values = values_of(weights.data);
      const Range range{weights.offset, weights.offset + weights.data.elements()};
      visit_pieces(*weights.parameter, range, [&](const Piece& piece, Range here, int64_t begin) {
        for (int64_t i = 0; i < here.count(); ++i) {
          const int64_t at = first.at(piece.name) + piece.slice.run_at(here.begin + i).begin;
          found[static_cast<size_t>(at)] += values[static_cast<size_t>(begin + i)];
          ++owners[static_cast<size_t>(at)];
        }
      });
    }
    EXPECT_EQ(world.control.sum(owners), std::vector<double>(owners.size(), 1.0));
    EXPECT_EQ(world.control.sum(found), expected);
  });
}

// A bucket is sent along its own group: with two data ranks, a cut bucket's messages never reach
// the other slices.
TEST_F(CutBuckets, CutParametersHaveBucketsOfTheirOwn) {
  ParamStore store(model.blocks, mesh->model(), test.stream, memory, {});
  for (int64_t i = 0; i < store.layout.buckets(); ++i) {
    for (const Parameter* parameter : store.layout.parameters_in(i)) {
      EXPECT_EQ(store.layout.bucket(i).cut, is_cut(*parameter)) << parameter->name;
    }
    EXPECT_EQ(store.layout.group(i).size(),
              store.layout.bucket(i).cut ? world.size() / kTensor : world.size());
  }
  EXPECT_EQ(store.layout.buckets(), 2);
}

}  // namespace
}  // namespace tandem::testing
