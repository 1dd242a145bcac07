#include "src/core/reduce.h"

#include <algorithm>
#include <vector>

namespace tandem {

namespace {

constexpr int64_t kChunk = 8192;

template <class T, class F>
double reduce(const T* x, int64_t n, F term) {
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
  return total;
}

}  // namespace

template <class T>
double sum(Cpu, const T* x, int64_t n) {
  return reduce(x, n, [](double value) { return value; });
}

template <class T>
double squared_norm(Cpu, const T* x, int64_t n) {
  return reduce(x, n, [](double value) { return value * value; });
}

template double sum<float>(Cpu, const float*, int64_t);
template double sum<double>(Cpu, const double*, int64_t);
template double squared_norm<float>(Cpu, const float*, int64_t);
template double squared_norm<double>(Cpu, const double*, int64_t);

}  // namespace tandem
