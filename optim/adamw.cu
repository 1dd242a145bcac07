#include "optim/adamw.h"
#include "optim/flat_optimizer.cuh"

namespace tandem::kernels {

TANDEM_UPDATE(AdamWRule)

}  // namespace tandem::kernels
