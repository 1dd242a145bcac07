// A model that predicts one of several classes for each target: a label of an image, or a token.
#pragma once

#include "layers/cross_entropy/cut_cross_entropy.h"
#include "layers/models/model.h"

namespace tandem {

// The last block returns only the logits, [targets, columns]. The first `classes` columns are
// classes; the others are padding (stored_shape). The loss is their cross-entropy.
class Classifier : public Model {
 public:
  // `here`: the ranks of context.tensor cut the classes, and these are those of this rank.
  explicit Classifier(int64_t classes, std::optional<Range> here = {})
      : classes_(classes), here_(here) {}
  virtual Variable logits(Context& context, const Tensor& input) {
    return run_blocks(context, blocks(), {Variable(input)})[0];
  }
  // targets: i32 [targets]; a target of kIgnoreTarget is ignored.
  Loss loss(Context& context, const Tensor& input, const Tensor& targets) override {
    const Variable scores = logits(context, input);
    if (here_) {
      const CutLoss loss = cut_cross_entropy(context, scores, targets, {*here_, classes_});
      return {loss.losses, loss.correct};
    }
    return {
        cross_entropy(context, scores, targets, classes_),
        context.training ? Tensor() : count_correct(context, scores.value(), targets, classes_)};
  }

 private:
  int64_t classes_;
  std::optional<Range> here_;
};

}  // namespace tandem
