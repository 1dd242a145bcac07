#include "src/kernels/activation_functions.h"
#include "src/kernels/elementwise.h"
#include "src/kernels/sigmoid.cuh"
#include "src/kernels/transform.cuh"

namespace tandem::kernels {

template <class T>
void fill(Cuda device, int64_t n, T* to, Wide<T> value) {
  transform(device, n, to, Constant<Wide<T>>{value});
}

template <class T>
void add(Cuda device, int64_t n, const T* a, const T* b, T* y) {
  transform(device, n, y, Plus{}, a, b);
}

template <class From, class To>
void convert(Cuda device, int64_t n, const From* from, To* to) {
  transform(device, n, to, Same{}, from);
}

template <class From>
void scale(Cuda device, int64_t n, float factor, const From* from, float* to) {
  transform(device, n, to, Times{factor}, from);
}

template <class Function, class T>
void activation_forward(Cuda device, int64_t n, const T* x, T* y) {
  transform(device, n, y, Value<Function, GpuSigmoid>{}, x);
}

template <class Function, class T>
void activation_backward(Cuda device, int64_t n, const T* dy, const T* saved, T* dx, Wide<T> beta) {
  if (beta == 0) {
    transform(device, n, dx, Gradient<Function, GpuSigmoid>{}, dy, saved);
  } else {
    transform(device, n, dx, AddedGradient<Function, GpuSigmoid, Wide<T>>{beta},
              static_cast<const T*>(dx), dy, saved);
  }
}

#define TANDEM_ACTIVATION(F, T)                                     \
  template void activation_forward<F>(Cuda, int64_t, const T*, T*); \
  template void activation_backward<F>(Cuda, int64_t, const T*, const T*, T*, float);
#define TANDEM_ELEMENTWISE(T)                                  \
  template void fill<T>(Cuda, int64_t, T*, float);             \
  template void add<T>(Cuda, int64_t, const T*, const T*, T*); \
  TANDEM_ACTIVATION(Relu, T)                                   \
  TANDEM_ACTIVATION(Gelu, T)                                   \
  TANDEM_ACTIVATION(Silu, T)
TANDEM_ELEMENTWISE(float)
TANDEM_ELEMENTWISE(Bf16)
TANDEM_ELEMENTWISE(Fp16)
#undef TANDEM_ELEMENTWISE
#undef TANDEM_ACTIVATION
template void add<int64_t>(Cuda, int64_t, const int64_t*, const int64_t*, int64_t*);
template void convert<float, float>(Cuda, int64_t, const float*, float*);
template void convert<float, Bf16>(Cuda, int64_t, const float*, Bf16*);
template void convert<float, Fp16>(Cuda, int64_t, const float*, Fp16*);
template void convert<Bf16, float>(Cuda, int64_t, const Bf16*, float*);
template void convert<Fp16, float>(Cuda, int64_t, const Fp16*, float*);
template void scale<float>(Cuda, int64_t, float, const float*, float*);
template void scale<Bf16>(Cuda, int64_t, float, const Bf16*, float*);

}  // namespace tandem::kernels
