// Clipping of gradients by their global norm.
#pragma once

namespace tandem {

// The factor all gradients are multiplied by, so that their norm is at most `max_norm`:
//     min(1, max_norm / (total_norm + 1e-6))
// as torch.nn.utils.clip_grad_norm_ (Pascanu et al. 2013). total_norm: the 2-norm of all gradients
// of all ranks together. max_norm 0: no clipping, the factor is 1. A total_norm that is NaN gives
// NaN and an infinite one 0; the caller decides about such steps before it comes here. Throws when
// max_norm is negative or not finite.
double clip_factor(double total_norm, double max_norm);

}  // namespace tandem
