#include "layers/models/decoder.h"

#include <algorithm>

#include "layers/models/transformer.h"
#include "src/device/copy.h"

namespace tandem {

namespace {

// Caches the keys and values of earlier positions, so that a step computes only one position.
class CachingDecoder final : public Decoder {
 public:
  CachingDecoder(Transformer& model, const Context& context)
      : context_(context), length_limit_(model.config().context), classes_(model.config().vocab) {
    const HeadLayout heads = model.config().head_layout();
    const Shape shape{heads.kv_heads, length_limit_, heads.width};
    for (int64_t i = 0; i < model.config().layers; ++i) {
      caches_.push_back({context_.activation(shape, model.dtype()),
                         context_.activation(shape, model.dtype()), 0});
    }
    blocks_ = model.blocks_over(caches_);
  }

  Tensor prefill(std::span<const int32_t> tokens) override {
    require(!tokens.empty(), "Decoder::prefill: no tokens");
    const size_t kept = std::min(tokens.size(), static_cast<size_t>(length_limit_));
    window_.assign(tokens.end() - static_cast<int64_t>(kept), tokens.end());
    for (KeyValueCache& cache : caches_) {
      cache.length = 0;
    }
    return run(window_);
  }

  Tensor step(int32_t token) override {
    if (length() == length_limit_) {
      const int64_t kept = std::max<int64_t>(length_limit_ / 2, 1);
      std::vector<int32_t> tail(window_.end() - kept + 1, window_.end());
      tail.push_back(token);
      return prefill(tail);
    }
    window_.push_back(token);
    return run({&token, 1});
  }

  int64_t length() const override { return static_cast<int64_t>(window_.size()); }

 private:
  Tensor run(std::span<const int32_t> tokens) {
    const int64_t count = static_cast<int64_t>(tokens.size());
    Memory host(Device::kCpu);
    const Tensor ids = Tensor::empty(host, {1, count}, DType::kI32, MemoryClass::kStaging);
    std::ranges::copy(tokens, ids.data<int32_t>());
    const Tensor input = context_.activation(ids.shape(), DType::kI32);
    copy(context_.stream, ids, input);
    const Tensor logits = run_blocks(context_, blocks_, {Variable(input)})[0].value();
    return logits.reshape({logits.elements()}).slice(0, classes_);
  }

  Context context_;
  int64_t length_limit_, classes_;
  std::vector<KeyValueCache> caches_;  // one for each layer
  std::vector<Block> blocks_;          // the model's blocks, which use the caches
  std::vector<int32_t> window_;        // the tokens whose keys and values are cached
};

}  // namespace

std::unique_ptr<Decoder> Transformer::decoder(const Context& context) {
  require(!context.tape && !context.training, "Transformer::decoder: a context of training");
  return std::make_unique<CachingDecoder>(*this, context);
}

}  // namespace tandem
