#include "src/kernels/elementwise.h"
#include "src/kernels/sigmoid.cuh"
#include "src/kernels/transform.cuh"

namespace tandem::kernels {

template <class To, class F, class... From>
void elementwise(Cuda device, int64_t n, To* to, F f, const From*... from) {
  transform(device, n, to, f, from...);
}

TANDEM_ELEMENTWISE(Cuda, float)
TANDEM_ELEMENTWISE(Cuda, Bf16)
TANDEM_ELEMENTWISE(Cuda, Fp16)
TANDEM_ELEMENTWISE_MIXED(Cuda)

}  // namespace tandem::kernels
