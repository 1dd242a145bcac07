// Documents side by side in a row, as Context::positions gives them, do not see each other.
#include <numeric>

#include "layers/attention/attention.h"
#include "layers/embedding/embedding.h"
#include "layers/models/transformer.h"
#include "layers/rope/rope.h"
#include "src/core/ignore_target.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

using Lengths = std::vector<int64_t>;

int64_t total(const Lengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

// The positions of rows of one length each.
Tensor positions_of(const std::vector<Lengths>& rows) {
  std::vector<int32_t> positions;
  for (const Lengths& row : rows) {
    for (const int64_t length : row) {
      for (int32_t i = 0; i < length; ++i) {
        positions.push_back(i);
      }
    }
  }
  const int64_t length = total(rows[0]);
  return int_tensor({std::ssize(rows), length}, positions);
}

// One document, two with a border at the edges of tiles, three, and forty.
std::vector<Lengths> rows_of(int64_t length) {
  std::vector<Lengths> rows = {{length}, {20, 41, length - 61}, Lengths(39, 3)};
  rows.back().push_back(length - 39 * 3);
  for (const int64_t border : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
    rows.push_back({border, length - border});
  }
  return rows;
}

std::vector<int32_t> some_tokens(int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>((i * i * i + 5 * i) % 31);
  }
  return tokens;
}

struct Pass {
  std::vector<double> logits;
  std::vector<std::vector<double>> gradients;  // by parameter
};

constexpr int64_t kLength = 150;

TransformerConfig config_of(bool llama) {
  return {.style = llama ? kLlama : kGpt2,
          .vocab = 31,
          .context = kLength,
          .layers = 2,
          .heads = 4,
          .kv_heads = llama ? 2 : 0,
          .width = 32};
}

// Forward and backward of a row, or of each of its documents alone.
Pass pass_of(Transformer& model, const Lengths& lengths, bool alone, bool recompute = false) {
  const std::vector<int32_t> tokens = some_tokens(total(lengths));
  bind_parameters(parameters_of(model), DType::kF32, 1, 0.3);
  Pass pass;
  size_t first = 0;
  const auto run = [&](int64_t length, Tensor positions, const std::vector<int32_t>& targets) {
    const std::vector<int32_t> part(tokens.begin() + first, tokens.begin() + first + length);
    TestContext test;
    test.context.recompute = recompute;
    test.context.positions = std::move(positions);
    const Tensor input = int_tensor({1, length}, part);
    const std::vector<double> logits = values_of(model.logits(test.context, input).value());
    pass.logits.insert(pass.logits.end(), logits.begin(), logits.end());
    TestContext training;
    training.context.recompute = recompute;
    training.context.positions = test.context.positions;
    const Variable losses =
        model.loss(training.context, input, int_tensor({length}, targets)).losses;
    training.tape.backward(training.context, losses, 1);
    first += length;
  };
  // The last token of a document has no target.
  const auto targets_of = [&](size_t from, int64_t length) {
    std::vector<int32_t> targets(tokens.begin() + from + 1, tokens.begin() + from + length);
    targets.push_back(kIgnoreTarget);
    return targets;
  };
  if (alone) {
    for (const int64_t length : lengths) {
      run(length, {}, targets_of(first, length));
    }
  } else {
    std::vector<int32_t> targets;
    for (size_t from = 0; const int64_t length : lengths) {
      const std::vector<int32_t> more = targets_of(from, length);
      targets.insert(targets.end(), more.begin(), more.end());
      from += length;
    }
    run(total(lengths), positions_of({lengths}), targets);
  }
  for (const Parameter* parameter : parameters_of(model)) {
    pass.gradients.push_back(values_of(parameter->grad));
  }
  return pass;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) {
    most = std::max(most, std::abs(value));
  }
  return most;
}

// Logits are equal to the bit: what a mask leaves out adds zeros to sums of the same order. The
// gradients of weights are sums over tokens, in another order for a row than for its documents:
// 150 terms that err by 2^-24 each, 9e-6 of their sizes at the very most, a tenth of that in
// practice.
TEST(Documents, EqualThemselvesAlone) {
  for (const bool llama : {false, true}) {
    Transformer model(config_of(llama));
    for (const Lengths& lengths : rows_of(kLength)) {
      SCOPED_TRACE(str("llama ", llama, ", ", lengths.size(), " documents, the first of ",
                       lengths[0], " tokens"));
      const Pass row = pass_of(model, lengths, false), alone = pass_of(model, lengths, true);
      ASSERT_EQ(row.logits, alone.logits);
      for (size_t i = 0; i < row.gradients.size(); ++i) {
        const double band = 1e-6 * largest(alone.gradients[i]);
        for (size_t j = 0; j < row.gradients[i].size(); ++j) {
          ASSERT_NEAR(row.gradients[i][j], alone.gradients[i][j], band) << i << ", " << j;
        }
      }
    }
  }
}

TEST(Documents, OneToARowIsTheRow) {
  for (const bool llama : {false, true}) {
    Transformer model(config_of(llama));
    const Pass row = pass_of(model, {kLength}, false), alone = pass_of(model, {kLength}, true);
    EXPECT_EQ(row.logits, alone.logits);
    EXPECT_EQ(row.gradients, alone.gradients);
  }
}

TEST(Documents, RecomputedBlocksKnowThem) {
  for (const bool llama : {false, true}) {
    Transformer model(config_of(llama));
    const Lengths lengths = {50, 70, 30};
    EXPECT_EQ(pass_of(model, lengths, false, true).gradients,
              pass_of(model, lengths, false).gradients);
  }
}

const HeadLayout kHeads{4, 2, 6};
const std::vector<Lengths> kRows = {{2, 1, 4}, {7}, {1, 1, 5}};

Context& with_documents(Context& context) {
  context.positions = to_device(positions_of(kRows), context.stream.device());
  return context;
}

TEST(Documents, GradientsMatchFiniteDifferences) {
  const Shape shape{3, 7, kHeads.row()};
  check_gradients({shape}, {}, [](Context& context, const std::vector<Variable>& in) {
    return attention(with_documents(context), in[0], kHeads);
  });
  check_gradients({shape}, {}, [](Context& context, const std::vector<Variable>& in) {
    return rope(with_documents(context), in[0], kHeads);
  });
  Parameter wte{.name = "wte", .shape = {31, 5}}, wpe{.name = "wpe", .shape = {9, 5}};
  check_gradients({}, {&wte, &wpe}, [&](Context& context, const std::vector<Variable>&) {
    return embedding(with_documents(context), int_tensor({3, 7}, some_tokens(21)), wte, &wpe);
  });
}

// An element of a table's gradient is a sum of at most 21 rows.
TEST(Documents, PositionsAreThoseOfDocumentsOnAllDevices) {
  check_devices({{3, 7, kHeads.row()}}, {}, [](Context& context, const std::vector<Variable>& in) {
    return rope(with_documents(context), in[0], kHeads);
  });
  Parameter wte{.name = "wte", .shape = {31, 5}}, wpe{.name = "wpe", .shape = {9, 5}};
  check_devices({}, {&wte, &wpe},
                [&](Context& context, const std::vector<Variable>&) {
                  const Tensor tokens =
                      to_device(int_tensor({3, 7}, some_tokens(21)), context.stream.device());
                  return embedding(with_documents(context), tokens, wte, &wpe);
                },
                {.terms = 21});
}

}  // namespace
}  // namespace tandem::testing
