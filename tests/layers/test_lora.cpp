// Adapters of a linear layer, which is a stack of three.
#include <cmath>

#include "layers/add/add.h"
#include "layers/linear/linear.h"
#include "layers/lora/lora.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

constexpr int64_t kIn = 7, kRank = 3;
constexpr double kAlpha = 6;

// Queries [6], keys [4] and values [4].
Linear qkv(std::vector<std::string> targets) {
  Linear layer("blocks.0.attn.qkv", kIn,
               {{"blocks.0.attn.q", 6}, {"blocks.0.attn.k", 4}, {"blocks.0.attn.v", 4}},
               Initializer::normal(1), true);
  layer.adapt({.rank = kRank, .alpha = kAlpha, .targets = std::move(targets)});
  return layer;
}

std::vector<std::string> names_of(Linear& layer) {
  std::vector<std::string> names;
  for (const Parameter* parameter : layer.parameters()) {
    for (const Piece& piece : pieces_of(*parameter)) {
      names.push_back(str(piece.name, " ", piece.slice.whole()));
    }
  }
  names.erase(names.begin(), names.begin() + 6);  // those of the layer itself
  return names;
}

TEST(Lora, HasMatricesForEachTarget) {
  Linear some = qkv({"attn.q", "attn.v"}), one = qkv({"attn.qkv"}), none = qkv({"mlp.up"});
  EXPECT_EQ(names_of(some),
            (std::vector<std::string>{
                "blocks.0.attn.q.lora_A.weight [3, 7]", "blocks.0.attn.v.lora_A.weight [3, 7]",
                "blocks.0.attn.q.lora_B.weight [6, 3]", "blocks.0.attn.v.lora_B.weight [4, 3]"}));
  EXPECT_EQ(names_of(one), (std::vector<std::string>{"blocks.0.attn.qkv.lora_A.weight [3, 7]",
                                                     "blocks.0.attn.qkv.lora_B.weight [14, 3]"}));
  EXPECT_TRUE(some.is_adapted());
  EXPECT_FALSE(none.is_adapted());
}

TEST(Lora, StartsAsTheLayerItself) {
  Linear layer = qkv({"attn.q", "attn.v"});
  Parameter& a = *layer.parameters()[2];
  Parameter& b = *layer.parameters()[3];
  bind_parameters(layer.parameters(), DType::kF32);
  initialize(a, 1);
  initialize(b, 1);
  const std::vector<double> values = values_of(a.value);
  const auto [least, most] = std::ranges::minmax(values);
  const double bound = 1 / std::sqrt(static_cast<double>(kIn));
  EXPECT_TRUE(-bound <= least && least < -bound / 2 && bound / 2 < most && most < bound);
  EXPECT_EQ(values_of(b.value), std::vector<double>(10 * kRank, 0.0));
}

TEST(Lora, GradientsMatchFiniteDifferences) {
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"attn.q", "attn.v"}, {"attn.k"}, {"attn.qkv"}}) {
    SCOPED_TRACE(joined(targets));
    Linear layer = qkv(targets);
    check_gradients(
        {Shape{2, 3, kIn}}, layer.parameters(),
        [&](Context& context, const std::vector<Variable>& in) { return layer(context, in[0]); });
  }
}

// Two uses of one layer and of one input add their gradients.
TEST(Lora, SharedLayerAccumulates) {
  Linear layer = qkv({"attn.q", "attn.v"});
  check_gradients({Shape{3, kIn}}, layer.parameters(),
                  [&](Context& context, const std::vector<Variable>& in) {
                    return add(context, layer(context, in[0]), layer(context, in[0]));
                  });
}

TEST(Lora, DevicesAgree) {
  Linear layer = qkv({"attn.q", "attn.v"});
  check_devices(
      {Shape{33, kIn}}, layer.parameters(),
      [&](Context& context, const std::vector<Variable>& in) { return layer(context, in[0]); },
      {.terms = 64, .roundings = 8});
}

// y[:, targets] = x (W + alpha / r B A)^T + b, and the other columns are those of the layer.
TEST(Lora, AddsTheProductToTheWeight) {
  Linear layer = qkv({"attn.q", "attn.v"});
  const std::vector<Parameter*> all = layer.parameters();
  bind_parameters(all, DType::kF64);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i]->value = random_tensor(all[i]->shape, DType::kF64, i);
  }
  const Tensor x = random_tensor({5, kIn}, DType::kF64, 9);
  TestContext test;
  const Tensor y = layer(test.context, Variable(x)).value();
  const Tensor without = linear(test.context, Variable(x), *all[0], all[1]).value();
  const auto at = [](const Tensor& matrix, int64_t row, int64_t column) {
    return matrix.data<double>()[row * matrix.shape()[1] + column];
  };
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t column = 0; column < 14; ++column) {
      double added = 0;
      const bool is_key = 6 <= column && column < 10;
      const int64_t b_row = column < 6 ? column : column - 4, first = column < 6 ? 0 : kRank;
      for (int64_t r = 0; r < kRank && !is_key; ++r) {
        for (int64_t in = 0; in < kIn; ++in) {
          added += kAlpha / kRank * at(all[3]->value, b_row, r) * at(all[2]->value, first + r, in) *
                   at(x, row, in);
        }
      }
      if (is_key) {
        EXPECT_EQ(at(y, row, column), at(without, row, column));
      } else {
        // 21 products of numbers of order one, each rounded a few times by 2^-53.
        EXPECT_NEAR(at(y, row, column), at(without, row, column) + added, 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::testing
