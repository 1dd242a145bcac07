#include "layers/models/decoder.h"

#include <algorithm>
#include <vector>

#include "layers/models/transformer.h"
#include "src/core/mapped.h"
#include "src/device/copy.h"

namespace tandem {

Tensor Decoder::prefill(int32_t slot, std::span<const int32_t> tokens) {
  require(!tokens.empty(), "Decoder::prefill: no tokens");
  clear(slot);
  tokens = tokens.last(std::min(tokens.size(), static_cast<size_t>(context())));
  Tensor logits;
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), static_cast<size_t>(kChunk));
    std::vector<DecoderRow> rows = mapped(tokens.first(count), [=](int32_t token) {
      return DecoderRow{slot, token, false};
    });
    tokens = tokens.subspan(count);
    rows.back().is_asked = tokens.empty();
    logits = step(rows);
  }
  return logits;
}

namespace {

// Caches the keys and values of earlier positions, so that a step computes only its rows.
class CachingDecoder final : public Decoder {
 public:
  CachingDecoder(Transformer& model, const Context& context, int64_t slots, int64_t window)
      : context_(context), config_(model.config()), window_(window), windows_(slots) {
    for (int64_t i = 0; i < config_.layers; ++i) {
      cached_.caches.push_back(
          key_value_cache(context_, config_.heads_here(), slots, window_, model.dtype()));
    }
    blocks_ = model.blocks_over(&cached_);
  }

  int64_t slots() const override { return std::ssize(windows_); }
  int64_t context() const override { return window_; }

  Tensor step(std::span<const DecoderRow> rows) override {
    require(!rows.empty(), "Decoder::step: no rows");
    for (const DecoderRow& row : rows) {
      if (length(row.slot) == context()) {
        slide(row.slot);
      }
    }
    return append(rows);
  }

  void clear(int32_t slot) override { windows_.at(slot).clear(); }
  int64_t length(int32_t slot) const override { return std::ssize(windows_.at(slot)); }

 private:
  void slide(int32_t slot) {
    const std::vector<int32_t> window = std::move(windows_.at(slot));
    windows_[slot].clear();
    const int64_t kept = std::max<int64_t>(context() / 2, 1) - 1;
    if (kept > 0) {
      prefill(slot, std::span(window).last(static_cast<size_t>(kept)));
    }
  }

  Tensor append(std::span<const DecoderRow> rows) {
    const int64_t count = std::ssize(rows);
    Memory host(Device::kCpu);
    const Tensor numbers = Tensor::empty(host, {3, count}, DType::kI32, MemoryClass::kStaging);
    const std::span<int32_t> tokens(numbers.data<int32_t>(), rows.size());
    int32_t *positions = tokens.data() + count, *slots = positions + count;
    cached_.asked.clear();
    for (int64_t r = 0; r < count; ++r) {
      const DecoderRow& row = rows[r];
      if (row.token < 0 || row.token >= config_.vocab) {
        fail_data("token ", row.token, " is outside the vocabulary of ", config_.vocab);
      }
      require(length(row.slot) < context(), "Decoder::step: more rows than the window has places");
      tokens[r] = row.token;
      positions[r] = static_cast<int32_t>(length(row.slot));
      slots[r] = row.slot;
      windows_[row.slot].push_back(row.token);
      if (row.is_asked) {
        cached_.asked.push_back(r);
      }
    }
    const Tensor here = context_.activation(numbers.shape(), DType::kI32);
    copy(context_.stream, numbers, here);
    context_.positions = here.slice(count, count).reshape({count, 1});
    cached_.slots = here.slice(2 * count, count);
    const Tensor input = here.slice(0, count).reshape({count, 1});
    context_.rows = BatchRows::of(input.shape(), config_.cut);
    return run_blocks(context_, blocks_, {Variable(input)})[0].value();
  }

  Context context_;
  const TransformerConfig& config_;
  int64_t window_;
  CachedRows cached_;
  std::vector<Block> blocks_;                  // the model's blocks, which use cached_
  std::vector<std::vector<int32_t>> windows_;  // by slot: tokens whose keys are cached
};

}  // namespace

std::unique_ptr<Decoder> Transformer::decoder(const Context& context, int64_t slots,
                                              int64_t window) {
  require(!context.tape && !context.training, "Transformer::decoder: a context of training");
  require(slots > 0 && window <= config_.context,
          "Transformer::decoder: no slots, or a wide window");
  return std::make_unique<CachingDecoder>(*this, context, slots,
                                          window > 0 ? window : config_.context);
}

}  // namespace tandem
