#include "optim/flat_optimizer.cuh"
#include "optim/sgd.h"

namespace tandem::kernels {

template void prepare_update<SgdRule>(Cuda, const SgdOptions&, const StepInputs&, SgdScalars*);
template void update_shards<SgdRule>(Cuda, const SgdScalars*, DType, const ArrayList<ShardArrays>&);
template void update_shards<SgdRule>(Cuda, const SgdScalars*, DType,
                                     std::span<const ShardArrays, 1>);
template void prepare_update<SgdMomentumRule<false>>(Cuda, const SgdOptions&, const StepInputs&,
                                                     SgdScalars*);
template void update_shards<SgdMomentumRule<false>>(Cuda, const SgdScalars*, DType,
                                                    const ArrayList<ShardArrays>&);
template void update_shards<SgdMomentumRule<false>>(Cuda, const SgdScalars*, DType,
                                                    std::span<const ShardArrays, 1>);
template void prepare_update<SgdMomentumRule<true>>(Cuda, const SgdOptions&, const StepInputs&,
                                                    SgdScalars*);
template void update_shards<SgdMomentumRule<true>>(Cuda, const SgdScalars*, DType,
                                                   const ArrayList<ShardArrays>&);
template void update_shards<SgdMomentumRule<true>>(Cuda, const SgdScalars*, DType,
                                                   std::span<const ShardArrays, 1>);

}  // namespace tandem::kernels
