#include <omp.h>

#include <cmath>

#include "layers/embedding.h"
#include "tests/gradcheck.h"

namespace tandem::testing {
namespace {

Parameter make(const char* name, Shape shape) { return Parameter{.name = name, .shape = shape}; }

TEST(Embedding, GradientsMatchFiniteDifferences) {
  Parameter tokens_weight = make("wte", {7, 5}), positions_weight = make("wpe", {9, 5});
  const Tensor tokens = int_tensor({2, 4}, std::vector<int32_t>{3, 1, 3, 6, 0, 3, 1, 1});
  for (int64_t first : {0, 5}) {
    check_gradients({}, {&tokens_weight, &positions_weight},
                    [&](Context& context, const std::vector<Variable>&) {
                      return embedding(context, tokens, tokens_weight, &positions_weight, first);
                    });
  }
  check_gradients({}, {&tokens_weight}, [&](Context& context, const std::vector<Variable>&) {
    return embedding(context, tokens, tokens_weight, nullptr);
  });
}

TEST(Embedding, ValuesAreRowSums) {
  Parameter tokens_weight = make("wte", {4, 3}), positions_weight = make("wpe", {6, 3});
  bind_parameters(std::vector<Parameter*>{&tokens_weight, &positions_weight}, DType::kF32);
  TestContext test;
  const Variable y = embedding(test.context, int_tensor({1, 2}, std::vector<int32_t>{2, 3}),
                               tokens_weight, &positions_weight, 4);
  ASSERT_EQ(y.shape(), (Shape{1, 2, 3}));
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(y.data<float>()[i], tokens_weight.value.data<float>()[6 + i] +
                                      positions_weight.value.data<float>()[12 + i]);
  }
}

// The first write replaces whatever the memory holds, also in rows of absent tokens and positions;
// the next one adds.
TEST(Embedding, FirstWriteClearsAndTheNextAdds) {
  Parameter tokens_weight = make("wte", {5, 3}), positions_weight = make("wpe", {4, 3});
  bind_parameters(std::vector<Parameter*>{&tokens_weight, &positions_weight}, DType::kF32);
  for (const Tensor& grad : {tokens_weight.grad, positions_weight.grad}) {
    std::fill_n(grad.data<float>(), grad.elements(), NAN);
  }
  const Tensor tokens = int_tensor({2, 2}, std::vector<int32_t>{1, 1, 4, 1});
  for (int pass = 1; pass <= 2; ++pass) {
    TestContext test;
    test.tape.backward(test.context,
                       embedding(test.context, tokens, tokens_weight, &positions_weight), 1.0);
    const double uses_of_token[] = {0, 3, 0, 0, 1}, uses_of_position[] = {2, 2, 0, 0};
    for (int64_t i = 0; i < 15; ++i) {
      EXPECT_EQ(tokens_weight.grad.data<float>()[i], pass * uses_of_token[i / 3]);
    }
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(positions_weight.grad.data<float>()[i], pass * uses_of_position[i / 3]);
    }
  }
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
  const Tensor tokens = int_tensor({1, 3}, std::vector<int32_t>{0, 1, 2});
  EXPECT_NO_THROW(embedding(test.context, tokens, weight, &positions, 1));
  EXPECT_THROW(embedding(test.context, tokens, weight, &positions, 2), Error);
}

}  // namespace
}  // namespace tandem::testing
