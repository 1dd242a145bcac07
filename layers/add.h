// Residual addition.
#pragma once

#include "layers/module.h"

namespace tandem {

// x + branch, of one shape. The result takes the branch's memory when nobody else holds it, so hand
// the branch over with std::move.
Variable add(Context& context, const Variable& x, Variable branch);

}  // namespace tandem
