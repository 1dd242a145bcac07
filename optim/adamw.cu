#include "optim/adamw.h"
#include "optim/flat_optimizer.cuh"

namespace tandem::kernels {

template void prepare_update<AdamWRule>(Cuda, const AdamWOptions&, const StepInputs&,
                                        AdamWScalars*);
template void update_shards<AdamWRule, float>(Cuda, const AdamWScalars*,
                                              const ArrayList<ShardArrays>&);
template void update_shards<AdamWRule, Bf16>(Cuda, const AdamWScalars*,
                                             const ArrayList<ShardArrays>&);
template void update_shards<AdamWRule, Fp16>(Cuda, const AdamWScalars*,
                                             const ArrayList<ShardArrays>&);

}  // namespace tandem::kernels
