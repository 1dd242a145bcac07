// A model that leaves out its last block in every second micro-step.
#pragma once

#include "layers/linear/linear.h"
#include "layers/models/classifier.h"

namespace tandem::testing {

// A linear layer with two heads that take turns.
class TwoHeads final : public Classifier {
 public:
  TwoHeads(int64_t pixels, int64_t classes)
      : Classifier(classes),
        trunk_("trunk", pixels, kWidth, Initializer::normal(0.1)),
        one_("one", kWidth, classes, Initializer::normal(0.1)),
        other_("other", kWidth, classes, Initializer::normal(0.1)) {
    for (Linear* layer : {&trunk_, &one_, &other_}) {
      const std::vector<Parameter*> parameters = layer->parameters();
      add({{parameters[0]->name, parameters},
           [layer](Context& context, const Flow& x) -> Flow { return {(*layer)(context, x[0])}; }});
    }
  }
  double flops_per_sample() const override { return 1; }
  Variable logits(Context& context, const Tensor& input) override {
    const int64_t batch = input.shape()[0];
    Flow x = {Variable(input.reshape({batch, input.elements() / batch}))};
    head_ = 3 - head_;
    for (const BlockId block : {0, head_}) {
      x = run_block(context, block, blocks()[static_cast<size_t>(block)].body, std::move(x));
    }
    return x[0];
  }

 private:
  static constexpr int64_t kWidth = 112;  // a head fills a bucket of 2000 bytes
  Linear trunk_, one_, other_;
  BlockId head_ = 1;  // the block that was used last
};

}  // namespace tandem::testing
