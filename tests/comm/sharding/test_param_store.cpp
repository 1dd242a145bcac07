// Runs on every rank of a job of 1 to 4 ranks (tests/support/mpi_main.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "src/autograd/tape.h"
#include "src/kernels/reduce.h"
#include "tests/comm/sharding/store_model.h"
#include "tests/support/harness.h"
#include "tests/support/mpi_world.h"

namespace tandem::testing {
namespace {

class ParamStoreTest : public ::testing::Test {
 protected:
  const Ranks world = test_ranks();
  const int rank = world.rank();
  const int size = world.size();
  TestContext test;
  Memory memory{Device::kCpu};
  Group data{world.control, world.collectives, memory,
             std::vector<int>(static_cast<size_t>(size), 0)};
  std::mt19937 random{static_cast<uint32_t>(rank)};

  ParamStore make_store(StoreModel& model, const StoreOptions& options) {
    return ParamStore(model.blocks, data, test.stream, memory, options);
  }

  void contribute(Parameter& parameter, int from, int micro) const {
    const GradTarget target = grad_target(parameter);
    auto grad = target.into.as<float>();
    for (size_t i = 0; i < grad.size(); ++i) {
      grad[i] = (target.beta ? grad[i] : 0) + value(parameter, from, micro, i);
    }
  }
  static float value(const Parameter& parameter, int from, int micro, size_t i) {
    return static_cast<float>((from + 1) * static_cast<int>(i % 101) + 10 * micro + parameter.id);
  }
  void pause() { std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000)); }
  // A backward pass over replicated gradients, in a random order of this rank's own, with delays.
  void backward_in_any_order(ParamStore& store, int micro) {
    std::vector<Parameter*> order = store.layout.parameters();
    std::shuffle(order.begin(), order.end(), random);
    for (Parameter* parameter : order) {
      pause();
      contribute(*parameter, rank, micro);
      store.gradients.on_final(test.context, *parameter);
    }
  }
  void backward(ParamStore& store, const StoreModel& model, int micro,
                const std::string& skipped = "") {
    for (auto id = static_cast<BlockId>(model.blocks.size()) - 1; id >= 0; --id) {
      store.gradients.acquire(test.context, id, Pass::kBackward);
      for (Parameter* parameter : model.blocks[id].parameters) {
        if (parameter->name != skipped) {
          contribute(*parameter, rank, micro);
          store.gradients.on_final(test.context, *parameter);
        }
      }
      store.gradients.release(test.context, id, Pass::kBackward);
    }
  }
  void expect_sums(const ParamStore& store, int micro_steps, int first_rank = 0) const {
    for (size_t shard = 0; shard < store.shards.all().size(); ++shard) {
      for (const Extent& extent : store.shards.extents(shard)) {
        const auto grad = store.shards.all()[shard].grad.as<float>();
        int64_t wrong = 0;
        for (int64_t i = 0; i < extent.count; ++i) {
          float expected = 0;
          for (int from = first_rank; from < size; ++from) {
            for (int micro = 0; micro < micro_steps; ++micro) {
              expected +=
                  value(store.shards.parameter(extent), from, micro, extent.in_parameter + i);
            }
          }
          wrong += grad[extent.in_flat + i] != expected;
        }
        EXPECT_EQ(wrong, 0) << store.shards.parameter(extent).name;
      }
    }
  }
  // Padding is the part of a shard that no extent covers.
  static void expect_zero_padding(const ParamStore& store) {
    for (size_t shard = 0; shard < store.shards.all().size(); ++shard) {
      const Shard& flat = store.shards.all()[shard];
      std::vector<bool> used(static_cast<size_t>(flat.value.elements()), false);
      for (const auto& extent : store.shards.extents(shard)) {
        std::fill_n(used.begin() + extent.in_flat, extent.count, true);
      }
      for (size_t i = 0; i < used.size(); ++i) {
        if (!used[i]) {
          ASSERT_EQ(flat.value.as<float>()[i], 0);
          ASSERT_EQ(flat.grad.as<float>()[i], 0);
        }
      }
    }
  }
};

TEST_F(ParamStoreTest, BindsParametersToFlatMemory) {
  StoreModel model = small_model();
  ParamStore store = make_store(model, {.bucket_bytes = 1500});
  ParamId id = 0;
  for (const Parameter& parameter : model.parameters) {
    EXPECT_EQ(parameter.id, id++);
    EXPECT_EQ(parameter.value.shape(), parameter.shape);
    EXPECT_EQ(parameter.grad.shape(), parameter.shape);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(parameter.value.raw()) % 32, 0u);
  }
  EXPECT_EQ(store.gradients.bytes(), store.layout.flat().elements() * 4);
}

TEST_F(ParamStoreTest, ShardedValuesAndGradientsAreThereBetweenAcquireAndRelease) {
  StoreModel model = small_model();
  ParamStore store = make_store(model, {.zero = 3});
  const bool comes_and_goes = size > 1;
  EXPECT_EQ(store.gradients.is_collective(), comes_and_goes);
  store.gradients.begin_step();
  store.gradients.begin_backward(true);
  const auto is_there = [&](BlockId block, Tensor Parameter::*view) {
    return static_cast<bool>(model.blocks[block].parameters.front()->*view);
  };
  for (BlockId block = 3; block >= 0; --block) {
    EXPECT_EQ(is_there(block, &Parameter::value), !comes_and_goes);
    EXPECT_EQ(is_there(block, &Parameter::grad), !comes_and_goes);
    store.gradients.acquire(test.context, block, Pass::kBackward);
    for (Parameter* parameter : model.blocks[block].parameters) {
      EXPECT_EQ(parameter->value.shape(), parameter->shape);
      EXPECT_EQ(parameter->grad.shape(), parameter->shape);
      contribute(*parameter, rank, 0);
    }
    store.gradients.release(test.context, block, Pass::kBackward);
    EXPECT_EQ(is_there(block, &Parameter::value), !comes_and_goes);
  }
  ASSERT_TRUE(store.gradients.finish_backward());
  EXPECT_EQ(is_there(0, &Parameter::grad), !comes_and_goes);
  expect_sums(store, 1);
}

TEST_F(ParamStoreTest, CallsOutOfOrderAreErrors) {
  StoreModel model = small_model();
  ParamStore store = make_store(model, {});
  GradientSync& gradients = store.gradients;
  const auto message = [](auto call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInternal);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto starts = [&](auto call, const std::string& text) {
    const std::string said = message(call);
    EXPECT_TRUE(said.find(text) != std::string::npos) << said;
  };
  const Tensor result = Tensor::zeros(test_memory(), {1}, DType::kF64, MemoryClass::kData);
  const Tensor scratch =
      Tensor::zeros(test_memory(), {kReduceScratch}, DType::kF64, MemoryClass::kData);
  starts([&] { gradients.begin_backward(true); },
         "GradientSync::begin_backward was called at the beginning; its place is after begin_step");
  gradients.begin_step();
  starts([&] { gradients.on_final(test.context, model.parameters[0]); },
         "GradientSync::on_final was called after begin_step; its place is after begin_backward");
  starts([&] { static_cast<void>(gradients.finish_backward()); }, "GradientSync::finish_backward");
  gradients.begin_backward(true);
  starts([&] { gradients.begin_step(); }, "GradientSync::begin_step was called inside");
  starts([&] { gradients.squared_norm(result, scratch); },
         "GradientSync::squared_norm was called after begin_backward; its place is after the last "
         "finish_backward");
}

TEST_F(ParamStoreTest, InitialValuesAreTheSameOnAllRanksAndForEveryLayout) {
  StoreModel model = small_model(), other = small_model();
  ParamStore store = make_store(model, {.bucket_bytes = 1500});
  ParamStore large = make_store(other, {.bucket_bytes = 1 << 20, .zero = 3});
  store.values.initialize(7);
  large.values.initialize(7);
  large.values.gather();
  std::string bytes;
  for (BlockId block = 0; block < 4; ++block) {
    large.values.acquire(test.context, block, Pass::kForward);
    for (size_t i = 0; i < model.blocks[block].parameters.size(); ++i) {
      const Tensor& value = model.blocks[block].parameters[i]->value;
      EXPECT_TRUE(std::ranges::equal(value.as<float>(),
                                     other.blocks[block].parameters[i]->value.as<float>()));
      bytes.append(reinterpret_cast<const char*>(value.raw()), static_cast<size_t>(value.bytes()));
    }
    large.values.release(test.context, block, Pass::kForward);
  }
  EXPECT_NE(model.parameters[0].value.as<float>()[0], model.parameters[0].value.as<float>()[1]);
  for (const std::string& one : world.control.all_gather(bytes)) {
    EXPECT_TRUE(one == bytes);
  }
  expect_zero_padding(store);
  expect_zero_padding(large);
}

TEST_F(ParamStoreTest, SumsGradientsWhateverTheOrderOnEachRank) {
  for (bool overlap : {true, false}) {
    for (int zero : {0, 1}) {
      StoreModel model = small_model();
      ParamStore store =
          make_store(model, {.bucket_bytes = 1500, .overlap = overlap, .zero = zero});
      for (int step = 0; step < 3; ++step) {
        SCOPED_TRACE(str("overlap ", overlap, ", stage ", zero, ", step ", step));
        store.gradients.begin_step();
        store.gradients.begin_backward(true);
        backward_in_any_order(store, 0);
        ASSERT_TRUE(store.gradients.finish_backward());
        EXPECT_GE(store.values.timeline().seconds()[1], 0);
        expect_sums(store, 1);
        expect_zero_padding(store);
      }
    }
  }
}

TEST_F(ParamStoreTest, SumsMicroStepsInAllStages) {
  for (int zero : {0, 1, 2, 3}) {
    for (bool overlap : {true, false}) {
      StoreModel model = small_model();
      ParamStore store =
          make_store(model, {.bucket_bytes = 1500, .overlap = overlap, .zero = zero});
      for (int step = 0; step < 2; ++step) {
        SCOPED_TRACE(str("overlap ", overlap, ", stage ", zero, ", step ", step));
        store.gradients.begin_step();
        for (int micro = 0; micro < 3; ++micro) {
          store.gradients.begin_backward(micro == 2);
          backward(store, model, micro);
          ASSERT_TRUE(store.gradients.finish_backward());
        }
        expect_sums(store, 3);
        expect_zero_padding(store);
      }
    }
  }
}

// Only rank 0 does not use p3. Its old gradient must not leak into the new sum.
TEST_F(ParamStoreTest, AnUnusedParameterCountsAsZeroOnRequest) {
  for (int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(str("stage ", zero));
    StoreModel model = small_model();
    ParamStore store =
        make_store(model, {.bucket_bytes = 1500, .zero = zero, .unused_is_error = false});
    for (int step = 0; step < 2; ++step) {
      const bool skips = step == 1 && rank == 0;
      store.gradients.begin_step();
      store.gradients.begin_backward(true);
      backward(store, model, 0, skips ? "p3" : "");
      data.stream().synchronize();  // now the sums that on_final started are complete
      ASSERT_TRUE(store.gradients.finish_backward());
      EXPECT_EQ(store.gradients.unused(), skips ? 1 : 0);
    }
    for (size_t shard = 0; shard < store.shards.all().size(); ++shard) {
      for (const Extent& extent : store.shards.extents(shard)) {
        for (int64_t i = 0; store.shards.parameter(extent).name == "p3" && i < extent.count; ++i) {
          float expected = 0;
          for (int from = 1; from < size; ++from) {
            expected += value(store.shards.parameter(extent), from, 0, extent.in_parameter + i);
          }
          ASSERT_EQ(store.shards.all()[shard].grad.as<float>()[extent.in_flat + i], expected);
        }
      }
    }
  }
}

TEST_F(ParamStoreTest, AFinalParameterWithoutGradientCountsAsZeroOnRequest) {
  StoreModel model = small_model();
  ParamStore store = make_store(model, {.bucket_bytes = 1500, .unused_is_error = false});
  for (int step = 0; step < 2; ++step) {
    store.gradients.begin_step();
    store.gradients.begin_backward(true);
    for (size_t i = store.layout.parameters().size(); i-- > 0;) {
      Parameter* parameter = store.layout.parameters()[i];
      if (step == 0 || parameter->name != "p3") {
        contribute(*parameter, rank, 0);
      }
      store.gradients.on_final(test.context, *parameter);
    }
    ASSERT_TRUE(store.gradients.finish_backward());
  }
  const auto grad = model.parameters[3].grad.as<float>();
  EXPECT_EQ(std::ranges::count(grad, 0.0f), std::ssize(grad));
}

TEST_F(ParamStoreTest, AnUnusedParameterIsAnErrorThatNamesIt) {
  for (int zero : {0, 1, 2, 3}) {
    StoreModel model = small_model();
    ParamStore store = make_store(model, {.bucket_bytes = 1500, .zero = zero});
    store.gradients.begin_step();
    store.gradients.begin_backward(true);
    try {
      backward(store, model, 0, "p3");
      EXPECT_TRUE(store.gradients.finish_backward());
      ADD_FAILURE() << "no error in stage " << zero;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_NE(std::string(error.what()).find("p3"), std::string::npos) << error.what();
    }
    data.stream().synchronize();  // does not hang: every rank has started the same buckets
  }
}

struct ScaleOp final : Op {  // y = x times the parameter's first element, through the real tape
  Tensor x;
  std::string_view name() const override { return "scale"; }
  void backward(Context& context, Tensor& dy) override {
    const GradTarget target = grad_target(parameter(0));
    float* into = target.into.data<float>();
    into[0] = static_cast<float>(target.beta) * into[0] + dy.data<float>()[0] * x.data<float>()[0];
    if (!input(0).wanted()) {
      return;
    }
    Tensor dx = context.activation({1}, DType::kF32);
    dx.data<float>()[0] = dy.data<float>()[0] * parameter(0).value.data<float>()[0];
    input(0).add(context, dx);
  }
};

Variable scale(Context& context, const Variable& x, Parameter& parameter) {
  auto op = std::make_unique<ScaleOp>();
  op->x = x.value();
  Tensor y = context.activation({1}, DType::kF32);
  y.data<float>()[0] = x.value().data<float>()[0] * parameter.value.data<float>()[0];
  return context.record(y, std::move(op), {x}, {&parameter});
}

TEST_F(ParamStoreTest, WorksAsTheTapesCallback) {
  StoreModel model{{{1}}, {{1}}, {{1}}};
  ParamStore store = make_store(model, {.bucket_bytes = 4});
  for (int i = 0; i < 3; ++i) {
    model.parameters[i].value.as<float>()[0] = static_cast<float>(2 + i);  // 2, 3, 4
  }
  Tape tape([&](Context& context, Parameter& parameter) {
    store.gradients.on_final(context, parameter);
  });
  test.context.tape = &tape;
  store.gradients.begin_step();
  for (int micro = 0; micro < 2; ++micro) {
    Tensor x = test.context.activation({1}, DType::kF32);
    x.as<float>()[0] = static_cast<float>(1 + rank);
    Variable y(x);
    for (Parameter& parameter : model.parameters) {
      y = scale(test.context, y, parameter);
    }
    y = scale(test.context, y, model.parameters[0]);  // a second use, like that of a tied weight
    store.gradients.begin_backward(micro == 1);
    tape.backward(test.context, y, 1.0);
    ASSERT_TRUE(store.gradients.finish_backward());
  }
  // y = x a^2 b c with a = 2, b = 3, c = 4; x sums to N (N + 1) / 2, twice.
  const float x = static_cast<float>(size * (size + 1));
  EXPECT_EQ(model.parameters[0].grad.as<float>()[0], x * 2 * 2 * 3 * 4);
  EXPECT_EQ(model.parameters[1].grad.as<float>()[0], x * 4 * 4);
  EXPECT_EQ(model.parameters[2].grad.as<float>()[0], x * 4 * 3);
}

TEST_F(ParamStoreTest, DifferentLayoutsAreFoundOnAllRanks) {
  if (size == 1) {
    return;
  }
  StoreModel model = small_model();
  if (rank == 1) {
    model.parameters[4].shape = Shape{8};  // as if rank 1 had read another configuration
  }
  try {
    ParamStore store = make_store(model, {.bucket_bytes = 1500});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("rank 1 differs"), std::string::npos) << error.what();
  }
}

TEST_F(ParamStoreTest, ImpossibleOptionsAreRefused) {
  const auto expect_refused = [&](const StoreOptions& options, const std::string& what) {
    StoreModel model = small_model();
    try {
      ParamStore store = make_store(model, options);
      ADD_FAILURE() << "no error: " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  expect_refused({.zero = -1}, "dist.zero = -1");
  expect_refused({.zero = 4}, "dist.zero = 4");
  expect_refused({.wire_dtype = DType::kBf16, .exact_micro_batches = 4}, "dist.wire_dtype = bf16");
}

}  // namespace
}  // namespace tandem::testing
