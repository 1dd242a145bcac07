#include "optim/flat_optimizer.cuh"
#include "optim/lion.h"

namespace tandem::kernels {

TANDEM_UPDATE(LionRule)

}  // namespace tandem::kernels
