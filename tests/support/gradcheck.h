// Compares gradients with finite differences, in f64.
#pragma once

#include "tests/support/harness.h"

namespace tandem::testing {

using OpUnderTest = std::function<Variable(Context&, const std::vector<Variable>& inputs)>;

// Checks every gradient of `op` with respect to random f64 inputs of the given shapes and to
// `parameters` (bound here, with random values). The scalar loss is <w, op(...)> with a fixed
// random w; along a random direction v the central difference (L(z + hv) - L(z - hv)) / 2h must
// equal <grad, v>. With h = 1e-5 in f64 the truncation error is O(h^2) = 1e-10 and the rounding
// error about 1e-16 / h = 1e-11, relative to values of order one, so `tolerance` = 1e-6 relative
// leaves room for second derivatives of a few thousand only. `scale` sets the spread of inputs and
// parameters.
void check_gradients(const std::vector<Shape>& input_shapes,
                     const std::vector<Parameter*>& parameters, const OpUnderTest& op,
                     double scale = 1.0, double tolerance = 1e-6);

}  // namespace tandem::testing
