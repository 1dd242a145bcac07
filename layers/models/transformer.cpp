#include "layers/models/transformer.h"

#include <algorithm>

#include "layers/dropout/dropout.h"
#include "layers/embedding/embedding.h"
#include "layers/linear/linear.h"
#include "src/device/copy.h"

namespace tandem {

namespace {

constexpr uint32_t kEmbeddingSite = 0;

Parameter matrix(const char* name, int64_t rows, int64_t columns) {
  return {.name = name, .shape = {rows, columns}, .init = Initializer::normal(0.02), .decay = true};
}

// Makes a matrix with a row for each token. Ranks cut its rows.
Parameter vocabulary(const char* name, const TransformerConfig& config) {
  Parameter parameter = matrix(name, config.vocab, config.width);
  parameter.pieces = {{name, config.cut.of(parameter.shape, 0)}};
  parameter.shape = parameter.pieces[0].slice.extent();
  parameter.stored_rows = Cut{0, config.cut.count}.of(config.vocab).count();
  return parameter;
}

// The rows `numbers`, ascending, of x [n, C], without a gradient.
Variable rows_of(Context& context, const Variable& x, std::span<const int64_t> numbers) {
  const int64_t count = std::ssize(numbers), width = x.shape()[1];
  const Tensor rows = context.activation({count, width}, x.dtype());
  for (int64_t begin = 0, end; begin < count; begin = end) {
    end = begin + 1;
    while (end < count && numbers[end] == numbers[begin] + end - begin) {
      ++end;
    }
    const int64_t elements = (end - begin) * width;
    copy(context.stream, x.value().slice(numbers[begin] * width, elements),
         rows.slice(begin * width, elements));
  }
  return Variable(rows);
}

// logits [B, columns] of this rank's part of the vocabulary -> [B, vocab], on all ranks.
Variable of_whole_vocabulary(Context& context, const Variable& logits, int64_t vocab) {
  const int64_t batch = logits.shape()[0], columns = logits.shape()[1];
  const Variable all = gather_rows(context, logits);
  const Tensor whole = context.activation({batch, vocab}, logits.dtype());
  const int ranks = static_cast<int>(all.shape()[0] / batch);
  for (int rank = 0; rank < ranks; ++rank) {
    const Range here = Cut{rank, ranks}.of(vocab);
    for (int64_t b = 0; b < batch; ++b) {
      copy(context.stream, all.value().slice((rank * batch + b) * columns, here.count()),
           whole.slice(b * vocab + here.begin, here.count()));
    }
  }
  return Variable(whole);
}

}  // namespace

Transformer::Transformer(const TransformerConfig& config)
    : Classifier(config.vocab,
                 config.cut.count > 1 ? std::optional(config.cut.of(config.vocab)) : std::nullopt),
      config_(resolved(config)),
      wte_(vocabulary("wte", config_)),
      norm_f_(config.style.norm_f, config_.width, config_.norm_epsilon, config.style.is_biased) {
  wte_.classes = config_.tie_embeddings;
  wte_.blocks = config_.tie_embeddings ? 2 : 1;
  if (!config_.style.is_rotary) {
    wpe_ = matrix("wpe", config_.positions, config_.width);
  }
  for (int64_t i = 0; i < config_.layers; ++i) {
    layers_.emplace_back(config_, i);
  }
  if (!config_.tie_embeddings) {
    head_weight_ = vocabulary("head.weight", config_);
    head_weight_->classes = true;
  }
  for (Block& block : blocks_over(nullptr)) {
    add(std::move(block));
  }
}

Variable Transformer::logits(Context& context, const Tensor& tokens) {
  require(tokens.shape().rank() == 2 && tokens.shape()[1] <= config_.context,
          "Transformer: tokens ", tokens.shape(), " with a context of ", config_.context);
  const int64_t rows = tokens.elements(), ranks = config_.cut.count;
  require(rows % ranks == 0 || !context.tape, "Transformer: ", ranks, " ranks cannot divide ", rows,
          " rows");
  context.rows = BatchRows::of(tokens.shape(), config_.cut);
  return with_rows(context, Classifier::logits(context, tokens), rows);
}

std::vector<Block> Transformer::blocks_over(CachedRows* cached) {
  std::vector<Block> blocks;
  blocks.push_back({{"embedding", {&wte_}}, [this](Context& context, const Flow& x) -> Flow {
                      return {embed(context, x[0].value())};
                    }});
  blocks.back().recomputes = config_.cut.count == 1;  // what ranks exchange for it is more
  if (wpe_) {
    blocks.back().parameters.push_back(&*wpe_);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    blocks.push_back({{str("blocks.", i), layers_[i].parameters()},
                      [&layer = layers_[i], cached](Context& context, Flow x) {
                        return layer(context, std::move(x), cached);
                      }});
  }
  blocks.push_back(
      {{"head", parameters_in(norm_f_)}, [this, cached](Context& context, Flow x) -> Flow {
         const Variable normal = normalized(context, x, norm_f_);
         return {cached ? asked_logits(context, normal, cached->asked) : head(context, normal)};
       }});
  if (head_weight_) {
    blocks.back().parameters.push_back(&*head_weight_);
  }
  return blocks;
}

Variable Transformer::embed(Context& context, const Tensor& tokens) {
  Variable all = embedding(context, tokens, wte_, wpe_ ? &*wpe_ : nullptr);
  Variable rows = std::move(all).reshape({tokens.elements(), config_.width});
  rows = with_rows(context, std::move(rows), context.rows.here.count() * config_.cut.count);
  return dropout(context, scatter_add_rows(context, std::move(rows)), config_.dropout,
                 kEmbeddingSite);
}

Variable Transformer::head(Context& context, const Variable& x) {
  return linear(context, x, head_weight_ ? *head_weight_ : wte_, nullptr, Reads::kAllRows);
}

Variable Transformer::asked_logits(Context& context, const Variable& x,
                                   std::span<const int64_t> asked) {
  const Variable rows = rows_of(context, gather_rows(context, x), asked);
  const Variable logits = linear(context, rows, head_weight_ ? *head_weight_ : wte_, nullptr);
  return context.tensor ? of_whole_vocabulary(context, logits, config_.vocab) : logits;
}

double Transformer::flops_per_sample() const {
  const std::span all = blocks();
  const std::span embedding = all.front().parameters;
  ProductFlops of;
  of(embedding);  // tokens are looked up
  double of_token = 0, of_pair = 0;
  for (const Block& layer : all.subspan(1, layers_.size())) {
    of_token += of(layer.parameters);
    of_pair += (of.has_gradient() ? 12.0 : 4.0) * static_cast<double>(config_.heads_width());
  }
  of_token += of(all.back().parameters);
  of_token += of(embedding.first(head_weight_ ? 0 : 1));  // a tied head
  return of_token * static_cast<double>(config_.context) +
         of_pair * seen_pairs(config_.context, 0, config_.sliding_window);
}

}  // namespace tandem
