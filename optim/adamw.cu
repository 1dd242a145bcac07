#include "optim/adamw.h"
#include "optim/flat_optimizer.cuh"

namespace tandem::kernels {

template void prepare_update<AdamWRule>(Cuda, const AdamWOptions&, const StepInputs&,
                                        AdamWScalars*);
template void update_shards<AdamWRule>(Cuda, const AdamWScalars*, DType,
                                       const ArrayList<ShardArrays>&);
template void update_shards<AdamWRule>(Cuda, const AdamWScalars*, DType,
                                       std::span<const ShardArrays, 1>);

}  // namespace tandem::kernels
