#include "src/kernels/elementwise.h"

#include "src/kernels/map.h"

namespace tandem::kernels {

template <class To, class F, class... From>
void elementwise(Cpu device, int64_t n, To* to, F f, const From*... from) {
  transform(device, n, to, f, from...);
}

TANDEM_ELEMENTWISE(Cpu, float)
TANDEM_ELEMENTWISE(Cpu, double)
TANDEM_ELEMENTWISE(Cpu, Bf16)
TANDEM_ELEMENTWISE(Cpu, Fp16)
TANDEM_ELEMENTWISE_MIXED(Cpu)

}  // namespace tandem::kernels
