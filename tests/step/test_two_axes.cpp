// A model whose middle matrices are cut over the ranks of a stage, and whose samples are divided
// among the others. Runs on every rank of a job of 1, 2 or 4 ranks.
#include <gtest/gtest.h>

#include <map>

#include "comm/mesh.h"
#include "layers/activation/activation.h"
#include "layers/exchange/exchange.h"
#include "layers/linear/linear.h"
#include "layers/models/classifier.h"
#include "optim/adamw.h"
#include "src/step/training_step.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

constexpr int64_t kPixels = 6, kWidth = 10, kHidden = 12, kClasses = 5, kBatch = 8;

Initializer init() { return Initializer::normal(0.5); }

// relu(in), then down(relu(up)) with `up` cut by columns and `down` by rows, then the head. Between
// them a rank of a stage has its share of a micro-batch's rows.
class CutMlp final : public Classifier {
 public:
  CutMlp(int slice, int slices)
      : Classifier(kClasses),
        in_("in", kPixels, kWidth, init()),
        up_(cut("up", {kHidden, kWidth}, 0, slice, slices)),
        up_bias_(cut("up.bias", {kHidden}, 0, slice, slices)),
        down_(cut("down", {kWidth, kHidden}, 1, slice, slices)),
        head_("head", kWidth, kClasses, init()) {
    add({{"in", in_.parameters()}, [this](Context& context, const Flow& x) -> Flow {
           return {relu(context, in_(context, x[0]))};
         }});
    add({{"middle", {&up_, &up_bias_, &down_}}, [this](Context& context, const Flow& x) -> Flow {
           const Variable all = gather_rows(context, x[0]);
           const Variable hidden = relu(context, linear(context, all, up_, &up_bias_));
           return {scatter_add_rows(context, linear(context, hidden, down_, nullptr))};
         }});
    add({{"head", head_.parameters()},
         [this](Context& context, const Flow& x) -> Flow { return {head_(context, x[0])}; }});
  }
  double flops_per_sample() const override { return 1; }

 private:
  static Parameter cut(const char* name, const Shape& whole, int axis, int slice, int slices) {
    const Shape part = whole.with(axis, whole[axis] / slices);
    const Shape start = Slice(whole).start().with(axis, slice * part[axis]);
    return {.name = name,
            .shape = part,
            .init = init(),
            .decay = true,
            .pieces = {{name, Slice(whole, start, part)}}};
  }

  Linear in_;
  Parameter up_, up_bias_, down_;
  Linear head_;
};

// Logical tensors by name, put together from what the ranks of a group say of each element.
using Tensors = std::map<std::string, std::vector<double>>;

void put(Tensors& tensors, const Parameter& parameter, int64_t first, const Tensor& data) {
  const std::vector<double> values = values_of(data);
  visit_pieces(parameter, {first, first + data.elements()},
               [&](const Piece& piece, Range here, int64_t begin) {
                 std::vector<double>& all = tensors[piece.name];
                 all.resize(static_cast<size_t>(piece.slice.whole().elements()));
                 for (int64_t i = 0; i < here.count(); ++i) {
                   all[static_cast<size_t>(piece.slice.run_at(here.begin + i).begin)] +=
                       values[static_cast<size_t>(begin + i)];
                 }
               });
}

class TwoAxes : public ::testing::Test {
 protected:
  // Rows [first, first + count) of the global batch.
  static DeviceBatch batch(int64_t first, int64_t count, DType dtype) {
    const Tensor all = random_tensor({kBatch, kPixels}, dtype, 3);
    std::vector<int32_t> labels;
    for (int64_t i = first; i < first + count; ++i) {
      labels.push_back(static_cast<int32_t>((i * i + 2 * i) % kClasses));
    }
    return {all.slice(first * kPixels, count * kPixels).reshape({count, kPixels}),
            int_tensor({count}, labels)};
  }
  // Those of this rank in a job of this shape.
  static DeviceBatch own_batch(const Mesh& mesh, int64_t micro_batch, int64_t number, DType dtype) {
    const int64_t slices = mesh.size(Axis::kTensor), share = kBatch / mesh.size(Axis::kData);
    return batch(mesh.index(Axis::kData) * share + number * micro_batch +
                     mesh.index(Axis::kTensor) * (micro_batch / slices),
                 micro_batch / slices, dtype);
  }
  Mesh mesh_of(const MeshShape& shape) {
    return Mesh(world.control, world.collectives, test_memory(),
                std::vector<int>(static_cast<size_t>(world.size()), 0), Sharing::kWorld, shape);
  }

  // Of the sum of the losses of the global batch, in f64.
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
    const DeviceBatch rows = own_batch(mesh, kBatch / mesh.size(Axis::kData), 0, DType::kF64);
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
  Trained train(const MeshShape& shape, const StoreOptions& store, bool exact) {
    const Mesh mesh = mesh_of(shape);
    CutMlp model(mesh.index(Axis::kTensor), mesh.size(Axis::kTensor));
    TestContext test;
    Memory memory{Device::kCpu};
    constexpr int64_t kMicroBatch = 2;
    TrainingStep training(model, mesh.model(), test.stream, memory, memory,
                          {.batch = {kBatch, kMicroBatch, mesh.size(Axis::kData)},
                           .exact = exact,
                           .clip_norm = 0.5,
                           .store = store,
                           .optimizer = [](std::span<const Shard> shards, Memory& state) {
                             return make_optimizer(AdamWOptions{.weight_decay = 0.1}, shards,
                                                   state);
                           }});
    training.store().values.initialize(1);
    Trained trained;
    for (int64_t step = 0; step < 3; ++step) {
      training.run({.step = step, .lr = 0.01, .targets = kBatch, .batch = [&](int64_t number) {
                      return own_batch(mesh, kMicroBatch, number, DType::kF32);
                    }});
      const StepRecord::Copy copy = training.record().copy_to_host(test.stream);
      mesh.stage().wait(copy.done);
      trained.losses.push_back(copy.loss());
    }
    for (const ParamValues::Weights& weights : training.store().values.owned_weights()) {
      put(trained.weights, *weights.parameter, weights.offset, weights.data);
    }
    for (const Parameter* parameter : parameters_of(model)) {
      for (const Piece& piece : pieces_of(*parameter)) {
        std::vector<double>& all = trained.weights[piece.name];
        all.resize(static_cast<size_t>(piece.slice.whole().elements()));
        all = mesh.stage().control().sum(all);
      }
    }
    return trained;
  }

  const Ranks world = test_ranks();
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
      error = std::max(error, std::fabs(values[i] - two.at(name)[i]));
    }
    EXPECT_GT(largest, 0) << name;
    EXPECT_LE(error, 1e-12 * largest) << name;
  }
}

// At one tensor size neither data ranks nor ZeRO's stages change a bit of exact sums.
TEST_F(TwoAxes, ExactSumsHaveOneHash) {
  if (world.size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  const Trained alone = train({.islands = 2, .tensor = 2}, {}, true);
  for (int zero = 0; zero <= 3; ++zero) {
    SCOPED_TRACE(str("stage ", zero));
    EXPECT_EQ(train({.data = 2, .tensor = 2}, {.zero = zero}, true), alone);
  }
}

// Floating-point sums of two data ranks have one order, whatever is sharded. The bound says only
// that it is the same model: an update of AdamW is at most about the learning rate.
TEST_F(TwoAxes, StagesTrainTheSameModel) {
  if (world.size() != 4) {
    GTEST_SKIP() << "for four ranks";
  }
  const Trained one = train({.islands = 4, .data = 1}, {}, false);
  for (int zero = 0; zero <= 3; ++zero) {
    SCOPED_TRACE(str("stage ", zero));
    const Trained two = train({.data = 2, .tensor = 2}, {.zero = zero}, false);
    for (size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(two.losses[step], one.losses[step], 1e-5 * one.losses[step]);
    }
    EXPECT_EQ(two, train({.data = 2, .tensor = 2}, {.zero = zero}, false));
  }
}

}  // namespace
}  // namespace tandem::testing
