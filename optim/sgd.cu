#include "optim/flat_optimizer.cuh"
#include "optim/sgd.h"

namespace tandem::kernels {

template void prepare_update<SgdRule>(Cuda, const SgdOptions&, const StepInputs&, SgdScalars*);
template void update_shard<SgdRule>(Cuda, const SgdScalars*, bool, int64_t, const float*, float*,
                                    float*);
template void update_shard<SgdRule>(Cuda, const SgdScalars*, bool, int64_t, const float*, float*,
                                    Bf16*);
template void update_shard<SgdRule>(Cuda, const SgdScalars*, bool, int64_t, const float*, float*,
                                    Fp16*);

template void prepare_update<SgdMomentumRule<false>>(Cuda, const SgdOptions&, const StepInputs&,
                                                     SgdScalars*);
template void update_shard<SgdMomentumRule<false>>(Cuda, const SgdScalars*, bool, int64_t,
                                                   const float*, float*, float*, float*);
template void update_shard<SgdMomentumRule<false>>(Cuda, const SgdScalars*, bool, int64_t,
                                                   const float*, float*, Bf16*, float*);
template void update_shard<SgdMomentumRule<false>>(Cuda, const SgdScalars*, bool, int64_t,
                                                   const float*, float*, Fp16*, float*);

template void prepare_update<SgdMomentumRule<true>>(Cuda, const SgdOptions&, const StepInputs&,
                                                    SgdScalars*);
template void update_shard<SgdMomentumRule<true>>(Cuda, const SgdScalars*, bool, int64_t,
                                                  const float*, float*, float*, float*);
template void update_shard<SgdMomentumRule<true>>(Cuda, const SgdScalars*, bool, int64_t,
                                                  const float*, float*, Bf16*, float*);
template void update_shard<SgdMomentumRule<true>>(Cuda, const SgdScalars*, bool, int64_t,
                                                  const float*, float*, Fp16*, float*);

}  // namespace tandem::kernels
