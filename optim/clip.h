// Clipping of gradients by their global norm.
#pragma once

#include "src/core/host_device.h"

namespace tandem {

// The factor all gradients are multiplied by, so that their norm is at most `max_norm`:
//     min(1, max_norm / (total_norm + 1e-6))
// as torch.nn.utils.clip_grad_norm_ (Pascanu et al. 2013). total_norm: the 2-norm of all gradients
// of all ranks together. max_norm: finite, at least 0; 0: no clipping, the factor is 1. If
// total_norm is NaN, the factor is NaN; if it is infinite, 0. The caller decides about such steps.
TANDEM_HOST_DEVICE inline double clip_factor(double total_norm, double max_norm) {
  if (max_norm == 0) {
    return 1;
  }
  const double factor = max_norm / (total_norm + 1e-6);
  return factor > 1 ? 1 : factor;  // in this order NaN stays NaN
}

}  // namespace tandem
