#include "comm/sharding/sum_parts.h"

#include "src/kernels/map.h"

namespace tandem::kernels {

template <class From, class To>
void sum_parts(Cpu device, int64_t parts, int64_t n, const From* from, To* to) {
  map(device, n, [=](int64_t i) {
    float sum = from[i];
    for (int64_t part = 1; part < parts; ++part) {
      sum += from[part * n + i];
    }
    to[i] = To(sum);
  });
}

template void sum_parts<Bf16>(Cpu, int64_t, int64_t, const Bf16*, float*);
template void sum_parts<Bf16>(Cpu, int64_t, int64_t, const Bf16*, Bf16*);

}  // namespace tandem::kernels
