// The groups of a job's ranks. Runs on every rank of a job of 1 to 4 ranks
// (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>

#include "comm/mesh.h"
#include "tests/step/device_job.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

class MeshTest : public ::testing::Test {
 protected:
  const Ranks world = test_ranks();
  const int rank = world.rank(), size = world.size();
  Memory memory{Device::kCpu};
};

double sum(Control& control, double value) { return control.sum({&value, 1})[0]; }

TEST_F(MeshTest, AllRanksAreOneDataGroupUnlessToldOtherwise) {
  const Mesh mesh(world.control, world.collectives, memory,
                  std::vector<int>(static_cast<size_t>(size), 0));
  EXPECT_EQ(&mesh.job(), &world.control);
  EXPECT_EQ(&mesh.data().control(), &world.control);
  EXPECT_EQ(&mesh.data().collectives(), &world.collectives);
  EXPECT_EQ(mesh.data_groups(), 1);
  EXPECT_EQ(mesh.data_group(), 0);
  const WireCount before = mesh.wire();
  sum(mesh.job(), 1);
  EXPECT_EQ((mesh.wire() - before).of(Traffic::kControl).total(), 8 * (size - 1));
}

// Groups of ranks 0 and 2, and of ranks 1 and 3. The ranks of a group are on different nodes.
TEST_F(MeshTest, GroupsTalkAmongThemselves) {
  if (size != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  const Mesh mesh(world.control, world.collectives, memory, {0, 0, 1, 1}, Sharing::kWorld,
                  {.data = 2, .tensor = 2});
  Group& data = mesh.data();
  EXPECT_EQ(mesh.data_groups(), 2);
  EXPECT_EQ(mesh.data_group(), rank % 2);
  EXPECT_EQ(data.size(), 2);
  EXPECT_EQ(data.rank(), rank / 2);
  EXPECT_EQ(data.node_size(), 1);
  EXPECT_EQ(mesh.tensor()->size(), 2);
  EXPECT_EQ(mesh.tensor()->rank(), rank % 2);
  EXPECT_EQ(sum(mesh.tensor()->control(), rank), rank < 2 ? 0 + 1 : 2 + 3);
  EXPECT_EQ(mesh.tensor()->node_size(), 2);
  EXPECT_EQ(mesh.stage().size(), 4);
  EXPECT_EQ(mesh.stage().rank(), rank);

  const WireCount before = mesh.wire();
  EXPECT_EQ(sum(mesh.job(), rank), 0 + 1 + 2 + 3);
  EXPECT_EQ(sum(data.control(), rank), rank % 2 == 0 ? 0 + 2 : 1 + 3);
  const Tensor tensor = Tensor::zeros(memory, {10}, DType::kF32, MemoryClass::kGradients);
  std::ranges::fill(tensor.as<float>(), static_cast<float>(rank));
  data.all_reduce(tensor);
  data.wait(data.stream().record());
  EXPECT_EQ(values_of(tensor), std::vector<double>(10, rank % 2 == 0 ? 0 + 2 : 1 + 3));
  const WireCount sent = mesh.wire() - before;
  EXPECT_EQ(sent.of(Traffic::kControl), (WireCount::Bytes{.inside = 8, .between = 16 + 8}));
  EXPECT_EQ(sent.payload(), (WireCount::Bytes{.inside = 0, .between = 10 * 4}));
}

// The last axis is the innermost.
TEST_F(MeshTest, RankNumbersCountAlongTheLastAxisFirst) {
  if (size != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  const std::vector<int> nodes(4, 0);
  for (const Axis outer : {Axis::kPipeline, Axis::kIslands, Axis::kData}) {
    MeshShape shape{.data = 1, .tensor = 2};
    (outer == Axis::kPipeline  ? shape.pipeline
     : outer == Axis::kIslands ? shape.islands
                               : shape.data) = 2;
    const Mesh mesh(world.control, world.collectives, memory, nodes, Sharing::kWorld, shape);
    EXPECT_EQ(mesh.size(outer), 2);
    EXPECT_EQ(mesh.index(outer), rank / 2);
    EXPECT_EQ(mesh.index(Axis::kTensor), rank % 2);
    EXPECT_EQ(sum(mesh.tensor()->control(), rank), rank < 2 ? 0 + 1 : 2 + 3);
    const bool is_data = outer == Axis::kData;
    EXPECT_EQ(mesh.data().size(), is_data ? 2 : 1);
    EXPECT_EQ(mesh.data_groups(), is_data ? 2 : 4);
    EXPECT_EQ(mesh.data_group(), is_data ? rank % 2 : rank);
    EXPECT_EQ(mesh.stage().size(), is_data ? 4 : 2);
  }
}

TEST_F(MeshTest, WrongArgumentsAreErrorsBeforeAnythingIsSent) {
  const std::vector<int> nodes(static_cast<size_t>(size), 0);
  const auto mesh_of = [&](std::vector<int> node_of_rank, const MeshShape& shape) {
    Mesh(world.control, world.collectives, memory, std::move(node_of_rank), Sharing::kWorld, shape);
  };
  EXPECT_THROW(mesh_of({}, {}), Error);
  EXPECT_THROW(mesh_of(nodes, {.data = size + 1}), Error);
  EXPECT_THROW(mesh_of(nodes, {.islands = size + 1}), Error);
  EXPECT_THROW(mesh_of(nodes, {.tensor = 0}), Error);
}

// Two islands of two ranks in a job of four. Each must equal 1 rank that trains on the same
// samples, and differ from the other island.
TEST_F(MeshTest, IslandsTrainApart) {
  if (size != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  for_each_device([&](Device device) {
    Plan plan{.device = device, .exact = true, .micro_batch = kGlobalBatch / 4};
    Plan alone = plan;
    alone.alone = true;
    alone.samples_of = rank / 2;
    const Outcome own = train(alone);
    alone.samples_of = 1 - rank / 2;
    EXPECT_NE(own.weights, train(alone).weights);
    plan.islands = 2;
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(str("stage ", zero));
      plan.zero = zero;
      EXPECT_EQ(train(plan), own);
    }
  });
}

}  // namespace
}  // namespace tandem::testing
