#include "layers/models/decoder.h"

#include <algorithm>

#include "layers/models/transformer.h"
#include "src/device/copy.h"

namespace tandem {

namespace {

// Caches the keys and values of earlier positions, so that a step computes only one position.
class CachingDecoder final : public Decoder {
 public:
  CachingDecoder(Transformer& model, const Context& context, int64_t sequences)
      : context_(context),
        cut_(model.config().cut),
        length_limit_(model.config().context),
        windows_(sequences) {
    const HeadLayout heads = model.config().heads_here();
    const Shape shape{sequences, heads.kv_heads, length_limit_, heads.width};
    for (int64_t i = 0; i < model.config().layers; ++i) {
      caches_.push_back({context_.activation(shape, model.dtype()),
                         context_.activation(shape, model.dtype()), 0});
    }
    blocks_ = model.blocks_over(caches_);
  }

  Tensor prefill(std::span<const int32_t> tokens) override {
    require(!tokens.empty(), "Decoder::prefill: no tokens");
    const size_t kept = std::min(tokens.size(), static_cast<size_t>(length_limit_));
    for (std::vector<int32_t>& window : windows_) {
      window.assign(tokens.end() - static_cast<int64_t>(kept), tokens.end());
    }
    return read_windows();
  }

  Tensor step(std::span<const int32_t> tokens) override {
    require(tokens.size() == windows_.size(), "Decoder::step: one token for each sequence");
    const bool is_full = length() == length_limit_;
    for (size_t s = 0; s < windows_.size(); ++s) {
      if (is_full) {
        const int64_t kept = std::max<int64_t>(length_limit_ / 2, 1);
        windows_[s].erase(windows_[s].begin(), windows_[s].end() - kept + 1);
      }
      windows_[s].push_back(tokens[s]);
    }
    return is_full ? read_windows() : run(1);
  }

  int64_t length() const override { return std::ssize(windows_[0]); }

 private:
  Tensor read_windows() {
    for (KeyValueCache& cache : caches_) {
      cache.length = 0;
    }
    return run(length());
  }

  // Continues the cached sequences with the last `count` tokens of each window.
  Tensor run(int64_t count) {
    const int64_t sequences = std::ssize(windows_);
    Memory host(Device::kCpu);
    const Tensor ids = Tensor::empty(host, {sequences, count}, DType::kI32, MemoryClass::kStaging);
    for (int64_t s = 0; s < sequences; ++s) {
      std::copy_n(windows_[s].end() - count, count, ids.data<int32_t>() + s * count);
    }
    const Tensor input = context_.activation(ids.shape(), DType::kI32);
    copy(context_.stream, ids, input);
    context_.rows = BatchRows::of(ids.shape(), cut_);
    return run_blocks(context_, blocks_, {Variable(input)})[0].value();
  }

  Context context_;
  Cut cut_;
  int64_t length_limit_;
  std::vector<KeyValueCache> caches_;          // one for each layer
  std::vector<Block> blocks_;                  // the model's blocks, which use the caches
  std::vector<std::vector<int32_t>> windows_;  // by sequence: tokens whose keys are cached
};

}  // namespace

std::unique_ptr<Decoder> Transformer::decoder(const Context& context, int64_t sequences) {
  require(!context.tape && !context.training, "Transformer::decoder: a context of training");
  require(sequences > 0, "Transformer::decoder: no sequences");
  return std::make_unique<CachingDecoder>(*this, context, sequences);
}

}  // namespace tandem
