#include "layers/add/add.h"
#include "src/kernels/elementwise.h"
#include "src/kernels/transform.cuh"

namespace tandem::kernels {

template <class T>
void add(Cuda device, int64_t n, const T* a, const T* b, T* y) {
  transform(device, n, y, Plus{}, a, b);
}

template void add<float>(Cuda, int64_t, const float*, const float*, float*);
template void add<Bf16>(Cuda, int64_t, const Bf16*, const Bf16*, Bf16*);
template void add<Fp16>(Cuda, int64_t, const Fp16*, const Fp16*, Fp16*);

}  // namespace tandem::kernels
