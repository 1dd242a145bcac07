#include "optim/flat_optimizer.cuh"
#include "optim/sgd.h"

namespace tandem::kernels {

template void prepare_update<SgdRule>(Cuda, const SgdOptions&, const StepInputs&, SgdScalars*);
template void update_shards<SgdRule, float>(Cuda, const SgdScalars*, const ArrayList<ShardArrays>&);
template void update_shards<SgdRule, Bf16>(Cuda, const SgdScalars*, const ArrayList<ShardArrays>&);
template void update_shards<SgdRule, Fp16>(Cuda, const SgdScalars*, const ArrayList<ShardArrays>&);

template void prepare_update<SgdMomentumRule<false>>(Cuda, const SgdOptions&, const StepInputs&,
                                                     SgdScalars*);
template void update_shards<SgdMomentumRule<false>, float>(Cuda, const SgdScalars*,
                                                           const ArrayList<ShardArrays>&);
template void update_shards<SgdMomentumRule<false>, Bf16>(Cuda, const SgdScalars*,
                                                          const ArrayList<ShardArrays>&);
template void update_shards<SgdMomentumRule<false>, Fp16>(Cuda, const SgdScalars*,
                                                          const ArrayList<ShardArrays>&);

template void prepare_update<SgdMomentumRule<true>>(Cuda, const SgdOptions&, const StepInputs&,
                                                    SgdScalars*);
template void update_shards<SgdMomentumRule<true>, float>(Cuda, const SgdScalars*,
                                                          const ArrayList<ShardArrays>&);
template void update_shards<SgdMomentumRule<true>, Bf16>(Cuda, const SgdScalars*,
                                                         const ArrayList<ShardArrays>&);
template void update_shards<SgdMomentumRule<true>, Fp16>(Cuda, const SgdScalars*,
                                                         const ArrayList<ShardArrays>&);

}  // namespace tandem::kernels
