#include "optim/clip.h"

#include <cmath>

#include "src/core/error.h"

namespace tandem {

double clip_factor(double total_norm, double max_norm) {
  require(std::isfinite(max_norm) && max_norm >= 0,
          [&] { return str("clip_factor: max_norm is ", max_norm); });
  if (max_norm == 0) {
    return 1;
  }
  const double factor = max_norm / (total_norm + 1e-6);
  return factor > 1 ? 1 : factor;  // in this order NaN stays NaN
}

}  // namespace tandem
