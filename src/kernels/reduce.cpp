#include "src/kernels/reduce.h"

#include <algorithm>
#include <vector>

#include "src/kernels/map.h"

namespace tandem {

namespace {

constexpr int64_t kChunk = 8192;

template <class T, class F>
void reduce(const T* x, int64_t n, double* result, bool add, F term) {
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  std::vector<double> partial(static_cast<size_t>(chunks));
#pragma omp parallel for schedule(static) if (chunks > 4)
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t last = std::min(n, (c + 1) * kChunk);
    double total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = c * kChunk; i < last; ++i) {
      total += term(static_cast<double>(x[i]));
    }
    partial[c] = total;
  }
  double total = 0;
  for (double value : partial) {
    total += value;
  }
  *result = total + (add ? *result : 0);
}

}  // namespace

template <class T>
void sum(Cpu, const T* x, int64_t n, double* result, double*, bool add) {
  reduce(x, n, result, add, [](double value) { return value; });
}

template <class T>
void squared_norm(Cpu, const T* x, int64_t n, double* result, double*, bool add) {
  reduce(x, n, result, add, [](double value) { return value * value; });
}

template void sum<float>(Cpu, const float*, int64_t, double*, double*, bool);
template void sum<double>(Cpu, const double*, int64_t, double*, double*, bool);
template void squared_norm<float>(Cpu, const float*, int64_t, double*, double*, bool);
template void squared_norm<Bf16>(Cpu, const Bf16*, int64_t, double*, double*, bool);
template void squared_norm<double>(Cpu, const double*, int64_t, double*, double*, bool);

namespace kernels {

template <class From, class To>
void sum_parts(Cpu device, int64_t parts, int64_t n, const From* from, To* to) {
  map(device, n, [=](int64_t i) {
    Wide<From> sum = from[i];
    for (int64_t part = 1; part < parts; ++part) {
      sum += from[part * n + i];
    }
    to[i] = To(sum);
  });
}

template void sum_parts<Bf16>(Cpu, int64_t, int64_t, const Bf16*, float*);
template void sum_parts<Bf16>(Cpu, int64_t, int64_t, const Bf16*, Bf16*);
template void sum_parts<float>(Cpu, int64_t, int64_t, const float*, float*);

}  // namespace kernels

}  // namespace tandem
