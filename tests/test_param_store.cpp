// Runs on every rank of a job of 1 to 4 (tests/mpi_main.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <random>
#include <thread>

#include "comm/param_store.h"
#include "src/autograd/tape.h"
#include "tests/harness.h"
#include "tests/mpi_world.h"

namespace tandem::testing {
namespace {

struct StoreModel {
  std::deque<Parameter> parameters;
  std::vector<BlockParameters> blocks;

  StoreModel(std::initializer_list<std::initializer_list<Shape>> shapes) {
    for (const auto& block : shapes) {
      blocks.push_back({.name = str("block", blocks.size()), .parameters = {}});
      for (const Shape& shape : block) {
        parameters.push_back({.name = str("p", parameters.size()),
                              .shape = shape,
                              .init = Initializer::normal(1),
                              .decay = shape.rank() > 1});
        blocks.back().parameters.push_back(&parameters.back());
      }
    }
  }
};

StoreModel small_model() {
  return {{{40, 5}, {5}}, {{3, 33}, {33}, {7}}, {{100, 11}, {11}, {3}}, {{9, 9}}};
}

class ParamStoreTest : public ::testing::Test {
 protected:
  Communicator& communicator = test_world().communicator();
  const int rank = communicator.rank();
  const int size = communicator.size();
  TestContext test;
  Memory memory{Device::kCpu};
  std::mt19937 random{static_cast<uint32_t>(rank)};

  static ParamStore::Options small_buckets() { return {.bucket_bytes = 1500}; }

  // Adds to the gradient what this rank contributes in this micro-step.
  void contribute(Parameter& parameter, int from, int micro) const {
    const bool add = parameter.grad_written;
    parameter.grad_written = true;
    auto grad = parameter.grad.as<float>();
    for (size_t i = 0; i < grad.size(); ++i) {
      grad[i] = (add ? grad[i] : 0) + value(parameter, from, micro, i);
    }
  }
  static float value(const Parameter& parameter, int from, int micro, size_t i) {
    return static_cast<float>((from + 1) * static_cast<int>(i % 101) + 10 * micro + parameter.id);
  }
  // One backward pass that visits the parameters in this rank's own random order, with delays.
  void backward(ParamStore& store, int micro, bool delays) {
    std::vector<Parameter*> order = store.parameters();
    std::shuffle(order.begin(), order.end(), random);
    for (Parameter* parameter : order) {
      if (delays) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      }
      contribute(*parameter, rank, micro);
      store.on_final(test.context, *parameter);
    }
  }
  void expect_sums(const ParamStore& store, int micro_steps) const {
    for (const Parameter* parameter : store.parameters()) {
      const auto grad = parameter->grad.as<float>();
      int64_t wrong = 0;
      for (size_t i = 0; i < grad.size(); ++i) {
        float expected = 0;
        for (int from = 0; from < size; ++from) {
          for (int micro = 0; micro < micro_steps; ++micro) {
            expected += value(*parameter, from, micro, i);
          }
        }
        wrong += grad[i] != expected;
      }
      EXPECT_EQ(wrong, 0) << parameter->name;
    }
  }
  // Padding lies in the shards and in no piece.
  static void expect_zero_padding(const ParamStore& store) {
    for (size_t shard = 0; shard < store.shards().size(); ++shard) {
      const Shard& flat = store.shards()[shard];
      std::vector<bool> used(static_cast<size_t>(flat.value.elements()), false);
      for (const auto& piece : store.pieces(shard)) {
        std::fill_n(used.begin() + piece.shard_offset, piece.count, true);
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
  ParamStore store(model.blocks, communicator, memory, small_buckets());
  ParamId id = 0;
  for (const Parameter& parameter : model.parameters) {
    EXPECT_EQ(parameter.id, id++);
    EXPECT_EQ(parameter.value.shape(), parameter.shape);
    EXPECT_EQ(parameter.grad.shape(), parameter.shape);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(parameter.value.raw()) % 32, 0u);
  }
  EXPECT_EQ(store.parameter_elements(), 200 + 5 + 99 + 33 + 7 + 1100 + 11 + 3 + 81);
  EXPECT_EQ(store.gradient_bytes(), store.layout().elements() * 4);
  EXPECT_GE(memory.use(MemoryClass::kParameters).bytes, store.gradient_bytes());
  EXPECT_GE(memory.use(MemoryClass::kGradients).bytes, store.gradient_bytes());
}

TEST_F(ParamStoreTest, InitialValuesAreTheSameOnAllRanksAndForEveryLayout) {
  StoreModel model = small_model(), other = small_model();
  ParamStore store(model.blocks, communicator, memory, small_buckets());
  ParamStore large(other.blocks, communicator, memory, {.bucket_bytes = 1 << 20});
  store.initialize(test.stream, 7);
  large.initialize(test.stream, 7);
  std::string bytes;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const Tensor& value = model.parameters[i].value;
    EXPECT_TRUE(std::ranges::equal(value.as<float>(), other.parameters[i].value.as<float>()));
    bytes.append(reinterpret_cast<const char*>(value.raw()), static_cast<size_t>(value.bytes()));
  }
  EXPECT_NE(model.parameters[0].value.as<float>()[0], model.parameters[0].value.as<float>()[1]);
  for (const std::string& one : communicator.all_gather(bytes)) {
    EXPECT_TRUE(one == bytes);
  }
  expect_zero_padding(store);
}

TEST_F(ParamStoreTest, SumsGradientsWhateverTheOrderOnEachRank) {
  for (bool overlap : {true, false}) {
    StoreModel model = small_model();
    ParamStore store(model.blocks, communicator, memory,
                     {.bucket_bytes = 1500, .overlap = overlap});
    for (int step = 0; step < 5; ++step) {
      SCOPED_TRACE(str(overlap ? "with" : "without", " overlap, step ", step));
      store.begin_step();
      store.begin_backward(true);
      backward(store, 0, true);
      EXPECT_GE(store.finish_backward(test.context).seconds(), 0);
      expect_sums(store, 1);
      expect_zero_padding(store);
    }
  }
}

TEST_F(ParamStoreTest, CommunicatesOnlyInTheLastMicroStep) {
  StoreModel model = small_model();
  ParamStore store(model.blocks, communicator, memory, small_buckets());
  const int64_t buckets = static_cast<int64_t>(store.layout().buckets().size());
  ASSERT_GE(buckets, 3);
  for (int step = 0; step < 2; ++step) {
    const WireCount before = communicator.wire();
    store.begin_step();
    for (int micro = 0; micro < 3; ++micro) {
      EXPECT_EQ(communicator.wire().collectives, before.collectives);
      store.begin_backward(micro == 2);
      backward(store, micro, false);
      store.finish_backward(test.context);
    }
    const WireCount after = communicator.wire();
    EXPECT_EQ(after.collectives - before.collectives, size > 1 ? buckets : 0);
    EXPECT_EQ(after.payload_bytes - before.payload_bytes,
              2 * (size - 1) * store.gradient_bytes() / size);
    EXPECT_EQ(after.control_bytes, before.control_bytes);
    expect_sums(store, 3);
  }
}

TEST_F(ParamStoreTest, WireBytesOfAnAwkwardParameter) {
  StoreModel model{{{1000003}}};
  ParamStore store(model.blocks, communicator, memory, {});
  const WireCount before = communicator.wire();
  store.begin_step();
  store.begin_backward(true);
  backward(store, 0, false);
  store.finish_backward(test.context);
  constexpr int64_t kExpected[] = {0, 0, 4000768, 5335040, 6002688};
  ASSERT_LE(size, 4);
  EXPECT_EQ(communicator.wire().payload_bytes - before.payload_bytes, kExpected[size]);
  expect_sums(store, 1);
}

TEST_F(ParamStoreTest, AnUnusedParameterIsAnErrorThatNamesIt) {
  StoreModel model = small_model();
  ParamStore store(model.blocks, communicator, memory, small_buckets());
  store.begin_step();
  store.begin_backward(true);
  for (Parameter* parameter : store.parameters()) {
    if (parameter->name != "p3") {
      contribute(*parameter, rank, 0);
      store.on_final(test.context, *parameter);
    }
  }
  try {
    store.finish_backward(test.context);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("p3"), std::string::npos) << error.what();
  }
  communicator.stream().synchronize();  // every rank has started the same buckets
}

// Rank 0 alone does not use it; its old gradient must not leak into the new sum. On rank 0 it is
// also reported final, as for a use that no gradient reached.
TEST_F(ParamStoreTest, AnUnusedParameterCountsAsZeroOnRequest) {
  for (bool reported : {false, true}) {
    StoreModel model = small_model();
    ParamStore store(model.blocks, communicator, memory,
                     {.bucket_bytes = 1500, .unused_is_error = false});
    for (int step = 0; step < 2; ++step) {
      store.begin_step();
      store.begin_backward(true);
      for (size_t i = store.parameters().size(); i-- > 0;) {
        Parameter* parameter = store.parameters()[i];
        const bool skipped = step == 1 && rank == 0 && parameter->name == "p3";
        if (!skipped) {
          contribute(*parameter, rank, 0);
        }
        if (!skipped || reported) {
          store.on_final(test.context, *parameter);
        }
      }
      communicator.stream().synchronize();  // what on_final has started is summed by now
      store.finish_backward(test.context);
    }
    const Parameter& parameter = model.parameters[3];
    for (size_t i = 0; i < parameter.grad.as<float>().size(); ++i) {
      float expected = 0;
      for (int from = 1; from < size; ++from) {
        expected += value(parameter, from, 0, i);
      }
      ASSERT_EQ(parameter.grad.as<float>()[i], expected);
    }
  }
}

TEST_F(ParamStoreTest, ShardsCoverEverythingOnce) {
  StoreModel model = small_model();
  ParamStore store(model.blocks, communicator, memory, small_buckets());
  store.initialize(test.stream, 3);
  std::vector<std::vector<double>> all, owned;
  for (const Parameter& parameter : model.parameters) {
    all.emplace_back(static_cast<size_t>(parameter.shape.elements()), 0.0);
  }
  owned = all;
  int64_t elements = 0;
  for (size_t shard = 0; shard < store.shards().size(); ++shard) {
    const Shard& flat = store.shards()[shard];
    EXPECT_EQ(flat.value.elements(), flat.grad.elements());
    elements += flat.value.elements();
    for (const auto& piece : store.pieces(shard)) {
      EXPECT_EQ(piece.parameter->decay, flat.decay);
      for (int64_t i = 0; i < piece.count; ++i) {
        ++all[piece.parameter->id][piece.offset + i];
        EXPECT_EQ(flat.value.as<float>()[piece.shard_offset + i],
                  piece.parameter->value.as<float>()[piece.offset + i]);
      }
    }
    for (const auto& piece : store.owned_pieces(shard)) {
      EXPECT_EQ(flat.value.data<float>() + piece.shard_offset,
                piece.parameter->value.data<float>() + piece.offset);
      for (int64_t i = 0; i < piece.count; ++i) {
        ++owned[piece.parameter->id][piece.offset + i];
      }
    }
  }
  EXPECT_EQ(elements * 4, store.gradient_bytes());
  for (size_t id = 0; id < all.size(); ++id) {
    EXPECT_EQ(all[id], std::vector<double>(all[id].size(), 1.0)) << id;
    EXPECT_EQ(communicator.sum(owned[id]), std::vector<double>(all[id].size(), 1.0)) << id;
  }
}

// y = x scaled by each parameter's first element, through the real tape.
struct ScaleOp final : Op {
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
  ParamStore store(model.blocks, communicator, memory, {.bucket_bytes = 4});
  for (int i = 0; i < 3; ++i) {
    model.parameters[i].value.as<float>()[0] = static_cast<float>(2 + i);  // 2, 3, 4
  }
  Tape tape([&](Context& context, Parameter& parameter) { store.on_final(context, parameter); });
  test.context.tape = &tape;
  store.begin_step();
  for (int micro = 0; micro < 2; ++micro) {
    Tensor x = test.context.activation({1}, DType::kF32);
    x.as<float>()[0] = static_cast<float>(1 + rank);
    Variable y(x);
    for (Parameter& parameter : model.parameters) {
      y = scale(test.context, y, parameter);
    }
    y = scale(test.context, y, model.parameters[0]);  // a second use, as of a tied weight
    store.begin_backward(micro == 1);
    tape.backward(test.context, y, 1.0);
    store.finish_backward(test.context);
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
    ParamStore store(model.blocks, communicator, memory, small_buckets());
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("rank 1 differs"), std::string::npos) << error.what();
  }
}

TEST_F(ParamStoreTest, LaterZeroStagesAreRefused) {
  for (int zero : {-1, 1, 2, 3, 4}) {
    StoreModel model = small_model();
    try {
      ParamStore store(model.blocks, communicator, memory, {.zero = zero});
      ADD_FAILURE() << "no error for stage " << zero;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_NE(std::string(error.what()).find(str("dist.zero=", zero)), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace tandem::testing
