// A model whose blocks have arbitrary parameters, for tests of how the store handles their sizes
// and kinds.
#pragma once

#include <deque>

#include "layers/models/model.h"

namespace tandem::testing {

// One parameter; tied: the last block uses it too; unused: no block uses it.
struct Link {
  int64_t count = 1;
  bool decay = true, frozen = false, tied = false, unused = false;
};
using Links = std::vector<std::vector<Link>>;  // by block

// x [B] starts at zero. Each parameter p [n] of each block in turn replaces x_b by
//     0.5 x_b + tanh(x_b + sum over i of p_i f(b, i) / sqrt(n)),
// where f is a fixed function of the sample's number in the global batch and of i.
class ChainModel final : public Model {
 public:
  // Parameters are p0, p1, ...
  explicit ChainModel(const Links& links);
  // samples: [B], not read. The losses are x [B], f32.
  Loss loss(Context& context, const Tensor& samples, const Tensor& targets) override;
  double flops_per_sample() const override { return 0; }

 private:
  std::deque<Parameter> parameters_;
  std::vector<std::vector<Parameter*>> uses_;  // by block
};

}  // namespace tandem::testing
