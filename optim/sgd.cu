#include "optim/flat_optimizer.cuh"
#include "optim/sgd.h"

namespace tandem::kernels {

template void update_shards<SgdRule>(Cuda, const SgdOptions&, const StepInputs&, SgdScalars*, DType,
                                     const ArrayList<ShardArrays>&);
template void update_shards<SgdMomentumRule<false>>(Cuda, const SgdOptions&, const StepInputs&,
                                                    SgdScalars*, DType,
                                                    const ArrayList<ShardArrays>&);
template void update_shards<SgdMomentumRule<true>>(Cuda, const SgdOptions&, const StepInputs&,
                                                   SgdScalars*, DType,
                                                   const ArrayList<ShardArrays>&);

}  // namespace tandem::kernels
