#include "optim/adamw.h"
#include "optim/flat_optimizer.cuh"

namespace tandem::kernels {

template void prepare_update<AdamWRule>(Cuda, const AdamWOptions&, const StepInputs&,
                                        AdamWScalars*);
template void update_shard<AdamWRule>(Cuda, const AdamWScalars*, bool, int64_t, const float*,
                                      float*, float*, float*, float*);
template void update_shard<AdamWRule>(Cuda, const AdamWScalars*, bool, int64_t, const float*,
                                      float*, Bf16*, float*, float*);
template void update_shard<AdamWRule>(Cuda, const AdamWScalars*, bool, int64_t, const float*,
                                      float*, Fp16*, float*, float*);

}  // namespace tandem::kernels
