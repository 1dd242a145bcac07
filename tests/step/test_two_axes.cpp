// A model whose middle matrices are cut over the ranks of a stage, and whose samples are divided
// among the others. Runs on every rank of a job of 1, 2 or 4 ranks.
#include <gtest/gtest.h>

#include "comm/mesh.h"
#include "optim/adamw.h"
#include "src/step/training_step.h"
#include "tests/step/cut_mlp.h"
#include "tests/step/logical_tensors.h"
#include "tests/support/device_ranks.h"
#include "tests/support/harness.h"

namespace tandem::testing {
namespace {

class TwoAxes : public ::testing::Test {
 protected:
  Mesh mesh_of(const MeshShape& shape, Device device = Device::kCpu) {
    return Mesh(world.control, collectives_.of(device), test_memory(device),
                std::vector<int>(static_cast<size_t>(world.size()), 0), Sharing::kWorld, shape);
  }

  // Returns the gradients of the sum of the losses of the global batch, in f64.
  Tensors gradients(const MeshShape& shape) {
    const Mesh mesh = mesh_of(shape);
    CutMlp model(mesh.index(Axis::kTensor), mesh.size(Axis::kTensor));
    bind_parameters(parameters_of(model), DType::kF64);
    for (Parameter* parameter : parameters_of(model)) {
      initialize(*parameter, 1);
    }
    TestContext test;
    test.context.training = true;
    test.context.tensor = mesh.tensor() ? &mesh.tensor()->collectives() : nullptr;
    const DeviceBatch rows = rows_of(mesh, CutMlp::kBatch / mesh.size(Axis::kData), 0, DType::kF64);
    test.tape.backward(test.context, model.loss(test.context, rows.input, rows.targets).losses, 1);
    Tensors sums;
    for (const Parameter* parameter : parameters_of(model)) {
      put(sums, *parameter, 0, parameter->grad.reshape({parameter->shape.elements()}));
    }
    for (auto& [name, values] : sums) {
      values = mesh.stage().control().sum(values);
    }
    return sums;
  }

  struct Trained {
    Tensors weights{};
    std::vector<double> losses{};
    bool operator==(const Trained&) const = default;
  };
  Trained train(const MeshShape& shape, const StoreOptions& store, bool exact, Device device) {
    const Mesh mesh = mesh_of(shape, device);
    CutMlp model(mesh.index(Axis::kTensor), mesh.size(Axis::kTensor));
    TestContext test(device);
    Memory memory(test.stream);
    Memory staging = device == Device::kCuda ? Memory::pinned() : Memory(Device::kCpu);
    constexpr int64_t kMicroBatch = 2;
    TrainingStep training(
        model, {mesh.stage(), mesh.data(), mesh.tensor()}, test.stream, memory, staging,
        {.batch = {CutMlp::kBatch, kMicroBatch, mesh.size(Axis::kData)},
         .exact = exact,
         .clip_norm = 0.5,
         .store = store,
         .optimizer = [](std::span<const Shard> shards, const OptimizerMemory& state) {
           return make_optimizer(AdamWOptions{.weight_decay = 0.1}, shards, state);
         }});
    training.store().values.initialize(1);
    Trained trained;
    for (int64_t step = 0; step < 3; ++step) {
      const WireCount before = mesh.wire();
      const StepRecord::Copy copy = training.run(
          {.step = step, .lr = 0.01, .targets = CutMlp::kBatch, .batch = [&](int64_t number) {
             const DeviceBatch rows = rows_of(mesh, kMicroBatch, number, DType::kF32);
             return DeviceBatch{to_device(rows.input, device), to_device(rows.targets, device)};
           }});
      mesh.stage().wait(copy.done);
      trained.losses.push_back(copy.loss());
      sent_ = (mesh.wire() - before).payload().total();
    }
    // In each micro-step a rank sends its rows of four activations to the other slices. It sends
    // its part of each gradient and of each value to the k - 1 others that hold it: stages 2 and 3
    // gradients in each micro-step, stage 3 values twice in each, but those of the last block once.
    const ModelLayout& layout = training.store().layout;
    const int64_t micro_steps = CutMlp::kBatch / mesh.size(Axis::kData) / kMicroBatch;
    int64_t elements = micro_steps * 4 * (mesh.size(Axis::kTensor) - 1) *
                       (kMicroBatch / mesh.size(Axis::kTensor)) * CutMlp::kWidth;
    for (int64_t i = 0; i < layout.buckets(); ++i) {
      const int64_t k = layout.group(i).size();
      const int64_t gathers = layout.bucket(i).first_block == layout.flat().blocks() - 1 ? 1 : 2;
      const int64_t times = store.zero < 2    ? 2
                            : store.zero == 2 ? micro_steps + 1
                                              : micro_steps * (1 + gathers);
      elements += times * (k - 1) * layout.bucket(i).range.count() / k;
    }
    expected_ = elements * size_of(DType::kF32);
    for (const ParamValues::Weights& weights : training.store().values.saved_weights()) {
      put(trained.weights, *weights.parameter, weights.offset, weights.data);
    }
    for (const Parameter* parameter : parameters_of(model)) {
      for (const Piece& piece : pieces_of(*parameter)) {
        std::vector<double>& all = trained.weights[piece.name];
        all.resize(static_cast<size_t>(piece.slice.whole().elements()));
        all = mesh.stage().control().sum(all);
      }
    }
    mesh.stage().stream().synchronize();
    test.stream.synchronize();
    return trained;
  }

  const Ranks world = test_ranks();
  DeviceRanks collectives_;
  int64_t sent_ = 0, expected_ = 0;  // payload bytes of this rank in the last step of train()
};

// Both compute the same sums of products in f64, in another order: of at most 12 addends a row, 8
// rows a sum. Each of the few layers adds relative errors of some 2^-53.
TEST_F(TwoAxes, GradientsAreThoseOfOneRank) {
  if (world.size() % 2 != 0) {
    GTEST_SKIP() << "for two or four ranks";
  }
  const Tensors one = gradients({.islands = world.size(), .data = 1});
  const Tensors two = gradients({.tensor = 2});
  ASSERT_EQ(one.size(), 7U);
  for (const auto& [name, values] : one) {
    ASSERT_EQ(two.at(name).size(), values.size()) << name;
    double largest = 0, error = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::fabs(values[i]));
      const double here = std::fabs(values[i] - two.at(name)[i]);
      error = here <= error ? error : here;  // NaN stays
    }
    EXPECT_GT(largest, 0) << name;
    EXPECT_LE(error, 1e-12 * largest) << name;
  }
}

TEST_F(TwoAxes, ExchangesHaveAStream) {
  if (world.size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  for_each_device([&](Device device) {
    const Mesh mesh = mesh_of({.tensor = 2}, device);
    EXPECT_NE(&mesh.tensor()->stream(), &mesh.stage().stream());
    EXPECT_EQ(&mesh.data().stream(), &mesh.stage().stream());
  });
}

// At one tensor size neither data ranks nor ZeRO's stages change a bit of exact sums.
TEST_F(TwoAxes, ExactSumsHaveOneHash) {
  if (world.size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  for_each_device([&](Device device) {
    const Trained alone = train({.islands = 2, .tensor = 2}, {}, true, device);
    for (int zero = 0; zero <= 3; ++zero) {
      SCOPED_TRACE(str("stage ", zero));
      EXPECT_EQ(train({.data = 2, .tensor = 2}, {.zero = zero}, true, device), alone);
    }
  });
}

TEST_F(TwoAxes, BytesAreThoseOfTheFormula) {
  if (world.size() % 2 != 0) {
    GTEST_SKIP() << "for two or four ranks";
  }
  for (int zero = 0; zero <= 3; ++zero) {
    for (const MeshShape& shape : {MeshShape{.tensor = 2}, MeshShape{}}) {
      train(shape, {.zero = zero}, false, Device::kCpu);
      EXPECT_EQ(sent_, expected_) << "stage " << zero << ", " << shape.tensor << " slices";
    }
  }
}

// Gradients in f32 differ by roundings: by about 1e-6 of the largest. An element with a gradient no
// larger than that may move by twice the learning rate, in either direction, but the loss depends
// on it by no more than that, either.
TEST_F(TwoAxes, StagesTrainTheSameModel) {
  if (world.size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  for_each_device([&](Device device) {
    const Trained one = train({.islands = 4, .data = 1}, {}, false, device);
    for (int zero = 0; zero <= 3; ++zero) {
      SCOPED_TRACE(str("stage ", zero));
      const Trained two = train({.data = 2, .tensor = 2}, {.zero = zero}, false, device);
      for (size_t step = 0; step < one.losses.size(); ++step) {
        EXPECT_NEAR(two.losses[step], one.losses[step], 1e-5 * one.losses[step]);
      }
    }
  });
}

}  // namespace
}  // namespace tandem::testing
