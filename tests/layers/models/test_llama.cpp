// Llamas with heads of any width, biases, norms of heads and windows, on every device.
#include "layers/models/transformer.h"
#include "tests/support/device_check.h"

namespace tandem::testing {
namespace {

constexpr int64_t kBatch = 2, kLength = 9;
constexpr int64_t kHeadWidths[] = {24, 80, 128};
constexpr int64_t kWindows[] = {0, kLength / 2, kLength + 1};  // none, and on both sides of the row
constexpr DType kDTypes[] = {DType::kF32, DType::kBf16, DType::kFp16};

// With k and w from 0 to 7 and to 2, any two of the values below meet in each of their
// combinations.
TransformerConfig config_of(int64_t k, int64_t w) {
  return {.style = kLlama,
          .vocab = 13,
          .context = kLength,
          .layers = 1,
          .heads = (k + 1) * (1 + k % 2),
          .kv_heads = k + 1,
          .head_width = kHeadWidths[w],
          .width = 96,
          .ffn_width = 32,
          .tie_embeddings = k % 2 == 0,
          .qkv_bias = (k + w) % 3 == 1,
          .attention_bias = (k + w) % 3 == 2,
          .qk_norm = (k + w) % 2 == 1,
          .sliding_window = kWindows[(k + 2 * w) % 3]};
}

// The sums on the way through the model: five norms or products of its width, one of the
// feed-forward network's, those of attention and of its projection, and the way back.
int64_t terms_of(const TransformerConfig& config) {
  return 2 * (5 * config.width + config.ffn_width + config.head_width + kLength +
              config.heads_width()) +
         kBatch * kLength;
}

// On that way values are stored fourteen times, and their gradients as often.
TEST(Llama, DevicesAgree) {
  std::vector<int32_t> tokens(kBatch * kLength);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>((i * i + 3 * i) % 13);
  }
  for (int64_t k = 0; k < 8; ++k) {
    for (int64_t w = 0; w < 3; ++w) {
      const TransformerConfig config = config_of(k, w);
      SCOPED_TRACE(str(config.kv_heads, " key-value heads of width ", config.head_width));
      Transformer model(config);
      check_devices({}, parameters_of(model),
                    [&](Context& context, const std::vector<Variable>&) {
                      return model.logits(context, to_device(int_tensor({kBatch, kLength}, tokens),
                                                             context.stream.device()));
                    },
                    {.terms = terms_of(config),
                     .roundings = 28,
                     .scale = 0.3,
                     .dtypes = {kDTypes[(k / 3 + w) % 3]}});
    }
  }
}

}  // namespace
}  // namespace tandem::testing
