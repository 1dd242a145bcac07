// Gradients of parameters that are sums over rows: of biases, and of the gains of norms. The ops of
// a block leave the sums over chunks of rows (src/kernels/column_sums.h), and all gradients of the
// block are finished in one launch.
#pragma once

#include <source_location>
#include <vector>

#include "src/autograd/variable.h"
#include "src/device/stream.h"

namespace tandem {

struct Context;

// The sums over chunks of the rows of a matrix [..., columns], as ParameterSums wants them: f32, or
// f64 of f64, [chunks, columns]. The meter gets them as a call of `place`.
Tensor sums_of_rows(const Context& context, const Tensor& matrix,
                    const std::source_location& place = std::source_location::current());

class ParameterSums {
 public:
  // The gradient of `parameter`, which is wanted, gets the sum of the rows of partial [chunks,
  // elements of the parameter]; partial is f32, or f64.
  void add(Parameter& parameter, Tensor partial);
  // Whether the gradient still misses what was added.
  bool misses(const Parameter* parameter) const;
  void finish(const Stream& stream);

 private:
  struct Sum {
    const Parameter* parameter;
    GradTarget gradient;
    Tensor partial;
  };
  std::vector<Sum> sums_;
};

}  // namespace tandem
