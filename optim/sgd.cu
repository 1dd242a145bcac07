#include "optim/flat_optimizer.cuh"
#include "optim/sgd.h"

namespace tandem::kernels {

TANDEM_UPDATE(SgdRule)
TANDEM_UPDATE(SgdMomentumRule<false>)
TANDEM_UPDATE(SgdMomentumRule<true>)

}  // namespace tandem::kernels
