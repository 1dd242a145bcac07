// Residual addition.
#pragma once

#include "src/autograd/context.h"
#include "src/device/dispatch.h"

namespace tandem {

// x + branch, which have the same shape. If no one else holds the branch's memory, the result
// reuses it, so pass the branch with std::move.
Variable add(Context& context, const Variable& x, Variable branch);

// Records `sum`, which is already x + branch, on the tape.
Variable record_sum(Context& context, Tensor sum, const Variable& x, const Variable& branch);

}  // namespace tandem
