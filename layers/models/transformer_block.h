// One layer of a decoder-only transformer: causal attention, then a feed-forward network. Each
// reads a normalised copy of the residual stream and adds its result to the stream.
//
// The addition at the end of a block and the norm at the beginning of the next block are fused into
// one pass over memory. So a block returns the residual stream and its last branch, and the next
// block adds them.
#pragma once

#include <optional>

#include "layers/attention/attention.h"
#include "layers/linear/linear.h"
#include "layers/models/transformer_config.h"
#include "layers/norm/norm.h"
#include "layers/rope/norm_rope.h"
#include "src/autograd/block.h"

namespace tandem {

// What the rows of a decoder's step need beside their values. Context::positions has their
// positions.
struct CachedRows {
  std::vector<KeyValueCache> caches{};  // one for each layer
  Tensor slots{};                       // i32 [rows]
  std::vector<int64_t> asked{};         // rows whose logits are asked for, ascending
};

class TransformerBlock {
 public:
  // Block `index` of a configuration with resolved defaults. Parameters are named blocks.`index`.*.
  // Weights are initialized from a normal distribution with deviation 0.02, or 0.02 / sqrt(2
  // layers) if they write to the residual stream (Radford et al. 2019).
  TransformerBlock(const TransformerConfig& config, int64_t index);
  // Tensors are [rows, C]: context.rows of [B, T]. With `cached`, rows [B, 1] of any sequences are
  // appended to the cache, and attend to themselves and to all earlier positions of their own.
  Flow operator()(Context& context, Flow x, CachedRows* cached);
  std::vector<Parameter*> parameters();

 private:
  Norm norm(const char* name) const;
  Linear reader(const char* name, std::vector<Linear::Outputs> layers, bool with_bias) const;
  Linear writer(const char* name, int64_t in, bool with_bias) const;
  Linear qkv(const HeadLayout& heads) const;
  Linear up() const;
  Parameter qk_gains(const HeadLayout& heads) const;
  Variable rotated(Context& context, Variable qkv, const HeadLayout& heads);
  Variable attend(Context& context, Variable qkv, CachedRows* cached);
  Variable feed_forward(Context& context, const Variable& x);

  TransformerConfig config_;
  int64_t index_;
  Norm norm_1_;
  Linear qkv_, proj_;
  std::optional<Parameter> qk_gains_;
  Norm norm_2_;
  Linear up_, down_;  // a gated up_ gives the gate, too
};

// Returns x [n, C] with `rows` rows: it drops the last ones, or adds zeros. Throws Error(kInternal)
// if a tape records.
Variable with_rows(Context& context, Variable x, int64_t rows);

// The norm of the residual stream x[0]. If x[1] exists, it is a branch that must be added first;
// afterwards x holds only the sum.
Variable normalized(Context& context, Flow& x, Norm& norm);

}  // namespace tandem
