#include "layers/decoder.h"

#include <algorithm>

#include "src/core/copy.h"

namespace tandem {

Decoder::Decoder(Transformer& model, Gate& gate, Stream& stream, Memory& memory)
    : model_(model), gate_(gate), context_{.stream = stream, .memory = memory} {
  const TransformerConfig& config = model.config();
  const HeadLayout heads = config.head_layout();
  const Shape shape{heads.kv_heads, config.context, heads.width};
  for (int64_t i = 0; i < config.layers; ++i) {
    caches_.push_back(
        {context_.activation(shape, model.dtype()), context_.activation(shape, model.dtype()), 0});
  }
}

Tensor Decoder::run(std::span<const int32_t> tokens) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  Memory host(Device::kCpu);
  const Tensor ids = Tensor::empty(host, {1, count}, DType::kI32, MemoryClass::kStaging);
  std::ranges::copy(tokens, ids.data<int32_t>());
  const Tensor input = context_.activation(ids.shape(), DType::kI32);
  copy(context_.stream, ids, input);
  return model_.decode(context_, gate_, input, caches_);
}

Tensor Decoder::prefill(std::span<const int32_t> tokens) {
  require(!tokens.empty(), "Decoder::prefill: no tokens");
  const size_t kept = std::min(tokens.size(), static_cast<size_t>(model_.config().context));
  window_.assign(tokens.end() - static_cast<int64_t>(kept), tokens.end());
  for (KeyValueCache& cache : caches_) {
    cache.length = 0;
  }
  return run(window_);
}

Tensor Decoder::step(int32_t token) {
  const int64_t context = model_.config().context;
  if (length() == context) {
    const int64_t kept = std::max<int64_t>(context / 2, 1);
    std::vector<int32_t> tail(window_.end() - kept + 1, window_.end());
    tail.push_back(token);
    return prefill(tail);
  }
  window_.push_back(token);
  return run({&token, 1});
}

}  // namespace tandem
