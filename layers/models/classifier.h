// A model that takes each target for one of several classes: labels of images, or tokens.
#pragma once

#include "layers/cross_entropy/cross_entropy.h"

namespace tandem {

// The last block returns logits [targets, width] alone, of which the first `classes` columns count.
// The loss is their cross-entropy.
class Classifier : public Model {
 public:
  explicit Classifier(int64_t classes) : classes_(classes) {}
  Variable logits(Context& context, const Tensor& input) {
    return run_blocks(context, blocks(), {Variable(input)})[0];
  }
  // Targets: i32 [targets], kIgnoreTarget for one that does not count.
  Loss loss(Context& context, const Tensor& input, const Tensor& targets) override {
    const Variable scores = logits(context, input);
    return {
        cross_entropy(context, scores, targets, classes_),
        context.training ? Tensor() : count_correct(context, scores.value(), targets, classes_)};
  }

 private:
  int64_t classes_;
};

}  // namespace tandem
