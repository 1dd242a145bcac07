#include <omp.h>

#include <cmath>

#include "layers/add/add.h"
#include "layers/embedding/embedding.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

Parameter make(const char* name, Shape shape) { return Parameter{.name = name, .shape = shape}; }

TEST(Embedding, GradientsMatchFiniteDifferences) {
  Parameter tokens_weight = make("wte", {7, 5}), positions_weight = make("wpe", {9, 5});
  const Tensor tokens = int_tensor({2, 4}, std::vector<int32_t>{3, 1, 3, 6, 0, 3, 1, 1});
  check_gradients({}, {&tokens_weight, &positions_weight},
                  [&](Context& context, const std::vector<Variable>&) {
                    return embedding(context, tokens, tokens_weight, &positions_weight);
                  });
  check_gradients({}, {&tokens_weight}, [&](Context& context, const std::vector<Variable>&) {
    return embedding(context, tokens, tokens_weight, nullptr);
  });
}

// Tokens of a vocabulary: every third one is the same, the others occur only a few times.
Tensor skewed_tokens(Shape shape, int32_t vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(shape.elements()));
  for (size_t n = 0; n < ids.size(); ++n) {
    ids[n] = static_cast<int32_t>(n % 3 == 0 ? 5 : n * n % static_cast<size_t>(vocab));
  }
  return int_tensor(shape, ids);
}

// Rows that are whole 16-byte packs or not; a vocabulary of one, two and three digits of 8 bits;
// more tokens than one tile of the sort; a row with more tokens than one warp sums.
TEST(Embedding, DevicesAgree) {
  struct Case {
    int32_t vocab;
    int64_t batch, length, width;
  };
  for (const Case& c : {Case{7, 2, 4, 5}, Case{300, 2, 550, 5}, Case{40, 3, 100, 16},
                        Case{70000, 1, 9, 4}, Case{7, 9, 1000, 4}, Case{11, 12, 3, 40}}) {
    Parameter tokens_weight = make("wte", {c.vocab, c.width});
    Parameter positions_weight = make("wpe", {c.length + 6, c.width});
    const Tensor tokens = skewed_tokens({c.batch, c.length}, c.vocab);
    const auto op = [&](Context& context, const std::vector<Variable>&) {
      const Tensor there = to_device(tokens, context.stream.device());
      return embedding(context, there, tokens_weight, &positions_weight);
    };
    check_devices({}, {&tokens_weight, &positions_weight}, op, {.terms = c.batch * c.length});
  }
}

// Without positions; the second op's gradients are added to the first's. Token 3 occurs as often as
// one warp sums, token 5 more often.
TEST(Embedding, DevicesAgreeWhenGradientsAdd) {
  Parameter weight = make("wte", {13, 16});
  std::vector<int32_t> ids(240);
  for (size_t n = 0; n < ids.size(); ++n) {
    ids[n] = static_cast<int32_t>(n < 64 ? 3 : n % 2 == 0 ? 5 : 6 + n % 7);
  }
  const Tensor tokens = int_tensor({2, 120}, ids);
  const auto op = [&](Context& context, const std::vector<Variable>&) {
    const Tensor there = to_device(tokens, context.stream.device());
    return add(context, embedding(context, there, weight, nullptr),
               embedding(context, there, weight, nullptr));
  };
  check_devices({}, {&weight}, op, {.terms = 480, .roundings = 8});
}

TEST(Embedding, ValuesAreRowSums) {
  Parameter tokens_weight = make("wte", {4, 3}), positions_weight = make("wpe", {6, 3});
  bind_parameters(std::vector<Parameter*>{&tokens_weight, &positions_weight}, DType::kF32);
  TestContext test;
  const Variable y =
      embedding(from_position(test.context, 1, 2, 4),
                int_tensor({1, 2}, std::vector<int32_t>{2, 3}), tokens_weight, &positions_weight);
  ASSERT_EQ(y.shape(), (Shape{1, 2, 3}));
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(y.data<float>()[i], tokens_weight.value.data<float>()[6 + i] +
                                      positions_weight.value.data<float>()[12 + i]);
  }
}

// The first write replaces whatever the memory holds, also in the rows of absent tokens and
// positions; the second write adds.
TEST(Embedding, FirstWriteClearsAndTheNextAdds) {
  for_each_device([](Device device) {
    Parameter tokens_weight = make("wte", {5, 3}), positions_weight = make("wpe", {4, 3});
    bind_parameters(std::vector<Parameter*>{&tokens_weight, &positions_weight}, DType::kF32);
    for (Parameter* parameter : {&tokens_weight, &positions_weight}) {
      std::fill_n(parameter->grad.data<float>(), parameter->grad.elements(), NAN);
      parameter->value = to_device(parameter->value, device);
      parameter->grad = to_device(parameter->grad, device);
    }
    const Tensor tokens = to_device(int_tensor({2, 2}, std::vector<int32_t>{1, 1, 4, 1}), device);
    for (int pass = 1; pass <= 2; ++pass) {
      TestContext test(device);
      test.tape.backward(test.context,
                         embedding(test.context, tokens, tokens_weight, &positions_weight), 1.0);
      const double uses_of_token[] = {0, 3, 0, 0, 1}, uses_of_position[] = {2, 2, 0, 0};
      const std::vector<double> dtokens = values_of(tokens_weight.grad);
      for (size_t i = 0; i < 15; ++i) {
        EXPECT_EQ(dtokens[i], pass * uses_of_token[i / 3]);
      }
      const std::vector<double> dpositions = values_of(positions_weight.grad);
      for (size_t i = 0; i < 12; ++i) {
        EXPECT_EQ(dpositions[i], pass * uses_of_position[i / 3]);
      }
    }
  });
}

TEST(Embedding, GradientsRepeatBitByBit) {
  const Tensor tokens = skewed_tokens({4, 100}, 11);
  for_each_device([&](Device device) {
    std::vector<std::vector<double>> results;
    for (int run = 0; run < 2; ++run) {
      Parameter weight = make("wte", {11, 24});
      bind_parameters(std::vector<Parameter*>{&weight}, DType::kF32);
      weight.value = to_device(weight.value, device);
      weight.grad = to_device(weight.grad, device);
      TestContext test(device);
      const Variable y = embedding(test.context, to_device(tokens, device), weight, nullptr);
      test.tape.backward(test.context, y,
                         to_device(random_tensor({4, 100, 24}, DType::kF32, 9), device));
      results.push_back(values_of(weight.grad));
    }
    EXPECT_EQ(results[0], results[1]);
  });
}

TEST(Embedding, NoTokens) {
  for_each_device([](Device device) {
    Parameter weight = make("wte", {5, 3});
    bind_parameters(std::vector<Parameter*>{&weight}, DType::kF32);
    std::fill_n(weight.grad.data<float>(), weight.grad.elements(), NAN);
    weight.value = to_device(weight.value, device);
    weight.grad = to_device(weight.grad, device);
    TestContext test(device);
    const Tensor none = to_device(int_tensor({2, 0}, std::vector<int32_t>{}), device);
    test.tape.backward(test.context, embedding(test.context, none, weight, nullptr), 1.0);
    EXPECT_EQ(values_of(weight.grad), std::vector<double>(15, 0.0));
  });
}

TEST(Embedding, BitsDoNotDependOnThreads) {
  std::vector<int32_t> ids(400);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i * i % 11);
  }
  std::vector<std::vector<double>> results;
  for (int threads : {1, 3}) {
    omp_set_num_threads(threads);
    Parameter weight = make("wte", {11, 90});
    bind_parameters(std::vector<Parameter*>{&weight}, DType::kF32);
    TestContext test;
    test.tape.backward(test.context,
                       embedding(test.context, int_tensor({4, 100}, ids), weight, nullptr),
                       random_tensor({4, 100, 90}, DType::kF32, 9));
    results.push_back(values_of(weight.grad));
  }
  omp_set_num_threads(omp_get_num_procs());
  EXPECT_EQ(results[0], results[1]);
}

TEST(Embedding, TokenOutsideTheVocabulary) {
  Parameter weight = make("wte", {5, 3});
  bind_parameters(std::vector<Parameter*>{&weight}, DType::kF32);
  TestContext test;
  for (int32_t bad : {-1, 5}) {
    try {
      embedding(test.context, int_tensor({1, 3}, std::vector<int32_t>{0, bad, 1}), weight, nullptr);
      FAIL() << "no error for " << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_NE(std::string(error.what()).find("position 1"), std::string::npos) << error.what();
    }
  }
}

TEST(Embedding, PositionsBeyondTheContext) {
  Parameter weight = make("wte", {5, 3}), positions = make("wpe", {4, 3});
  bind_parameters(std::vector<Parameter*>{&weight, &positions}, DType::kF32);
  TestContext test;
  const Tensor tokens = int_tensor({1, 5}, std::vector<int32_t>{0, 1, 2, 3, 4});
  EXPECT_NO_THROW(embedding(test.context, tokens.slice(0, 4).reshape({1, 4}), weight, &positions));
  EXPECT_THROW(embedding(test.context, tokens, weight, &positions), Error);
}

// Ranks that cut the vocabulary: their results and gradients add up to those of one.
TEST(Embedding, SlicesAddUpToTheWhole) {
  constexpr int64_t kVocab = 11, kWidth = 6, kBatch = 3, kLength = 4, kRows = kBatch * kLength;
  const Tensor whole = random_tensor({kVocab, kWidth}, DType::kF32, 1);
  const Tensor table = random_tensor({kLength + 1, kWidth}, DType::kF32, 2);
  const Tensor dy = random_tensor({kBatch, kLength, kWidth}, DType::kF32, 3);
  std::vector<int32_t> ids;
  for (int32_t n = 0; n < kRows; ++n) {
    ids.push_back(n * n % kVocab);
  }
  struct Sums {
    std::vector<double> y, dtokens, dpositions;
  };
  const auto run = [&](int ranks, Device device) {
    Sums sums{std::vector<double>(kRows * kWidth), std::vector<double>(kVocab * kWidth),
              std::vector<double>((kLength + 1) * kWidth)};
    const auto add = [](std::vector<double>& to, const Tensor& from, int64_t first = 0) {
      const std::vector<double> values = values_of(from);
      for (size_t i = 0; i < values.size(); ++i) {
        to[static_cast<size_t>(first) + i] += values[i];
      }
    };
    for (int rank = 0; rank < ranks; ++rank) {
      const Cut cut{rank, ranks};
      const Range tokens = cut.of(kVocab);
      Parameter weight{.name = "wte", .shape = {tokens.count(), kWidth}};
      weight.pieces = {{"wte", cut.of(Shape{kVocab, kWidth}, 0)}};
      Parameter positions{.name = "wpe", .shape = {kLength + 1, kWidth}};
      weight.id = 0, positions.id = 1;
      weight.value = to_device(whole.reshape({kVocab * kWidth})
                                   .slice(tokens.begin * kWidth, tokens.count() * kWidth)
                                   .reshape(weight.shape),
                               device);
      positions.value = to_device(table, device);
      weight.grad = unwritten(weight.shape, DType::kF32, device);
      positions.grad = unwritten(positions.shape, DType::kF32, device);
      TestContext test(device);
      test.context.rows = {kBatch, kLength, cut.of(kRows)};
      const Variable y = embedding(
          test.context, to_device(int_tensor({kBatch, kLength}, ids), device), weight, &positions);
      test.tape.backward(test.context, y, to_device(dy, device));
      add(sums.y, y.value());
      add(sums.dtokens, weight.grad, tokens.begin * kWidth);
      add(sums.dpositions, positions.grad);
    }
    return sums;
  };
  for_each_device([&](Device device) {
    const Sums one = run(1, device);
    for (const int ranks : {2, 4, 5}) {
      SCOPED_TRACE(ranks);
      const Sums cut = run(ranks, device);
      EXPECT_EQ(cut.dtokens, one.dtokens);         // one rank has a token's row
      for (size_t i = 0; i < one.y.size(); ++i) {  // here they are added in f64
        EXPECT_NEAR(cut.y[i], one.y[i], 0x1p-24 * std::fabs(one.y[i]));
      }
      for (size_t i = 0; i < one.dpositions.size(); ++i) {  // sums of 3 numbers of at most 4
        EXPECT_NEAR(cut.dpositions[i], one.dpositions[i], 3 * 12 * 0x1p-24);
      }
    }
  });
}

}  // namespace
}  // namespace tandem::testing
