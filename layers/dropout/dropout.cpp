#include "layers/dropout/dropout.h"

#include <algorithm>

#include "src/core/philox.h"
#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

namespace {

constexpr int64_t kCounters = kDropoutCounters;
constexpr int64_t kRun = kDropoutRun;

struct RunWords {
  uint32_t words[4][kCounters];
};

// random_words(key, sample, step, run * kCounters + i) for all i.
RunWords run_words(const DropoutMask& mask, uint64_t sample, uint32_t run) {
  RunWords out;
  uint32_t(&c)[4][kCounters] = out.words;
  for (uint32_t i = 0; i < kCounters; ++i) {
    c[0][i] = static_cast<uint32_t>(sample);
    c[1][i] = static_cast<uint32_t>(sample >> 32);
    c[2][i] = mask.step;
    c[3][i] = run * static_cast<uint32_t>(kCounters) + i;
  }
  philox(mask.key, c);
  return out;
}

}  // namespace

template <class T>
void dropout(Cpu, const T* x, T* y, double p, uint32_t site, const StepNumbers* numbers,
             const DropoutElements& elements) {
  if (elements.here.count() == 0) {
    return;
  }
  const DropoutMask mask = DropoutMask::of(*numbers, site);
  const int64_t runs = (elements.sample + kRun - 1) / kRun;
  const int64_t first_sample = elements.first_sample(), samples = elements.samples();
  const DropoutRule<Wide<T>> rule(p);
#pragma omp parallel for collapse(2) schedule(static) \
    firstprivate(rule) if (elements.here.count() >= kParallelElements)
  for (int64_t i = 0; i < samples; ++i) {
    for (int64_t run = 0; run < runs; ++run) {
      const int64_t sample = first_sample + i, first = sample * elements.sample + run * kRun;
      const int64_t end = std::min(first + kRun, (sample + 1) * elements.sample);
      const Range here = intersection({first, end}, elements.here);
      if (here.count() == 0) {
        continue;
      }
      const RunWords random = run_words(mask, mask.first_sample + static_cast<uint64_t>(sample),
                                        static_cast<uint32_t>(run));
      const uint32_t* words = random.words[0] + (here.begin - first);  // all are contiguous
      const int64_t at = here.begin - elements.here.begin;
#pragma omp simd
      for (int64_t j = 0; j < here.count(); ++j) {
        y[at + j] = T(rule(words[j], Wide<T>(x[at + j])));
      }
    }
  }
}

}  // namespace kernels

namespace {

kernels::DropoutElements elements_of(const BatchRows& rows, const Tensor& x) {
  const int64_t count = std::max<int64_t>(1, x.shape()[0]), row = x.elements() / count;
  if (rows.length == 0) {
    return {{0, x.elements()}, std::max<int64_t>(1, row)};
  }
  require(rows.here.count() == x.shape()[0], "dropout: ", x.shape(), " for ", rows.here.count(),
          " rows");
  return {{rows.here.begin * row, rows.here.end * row}, rows.length * row};
}

// Reuses x's memory if no one else holds it.
Tensor dropped(Context& context, const Tensor& x, double p, uint32_t site) {
  Tensor y = x.unique() ? x : context.activation(x.shape(), x.dtype());
  on_device(context.stream, touching(x, y), x.dtype(), [&]<class T>(auto device) {
    kernels::dropout(device, x.data<T>(), y.data<T>(), p, site, context.numbers,
                     elements_of(context.rows, x));
  });
  return y;
}

struct DropoutOp final : Op {
  double p = 0;
  uint32_t site = 0;

  std::string_view name() const override { return "dropout"; }
  void backward(Context& context, Tensor& dy) override {
    input(0).add(context, dropped(context, dy, p, site));
  }
};

}  // namespace

Variable dropout(Context& context, Variable x, double p, uint32_t site) {
  require(p >= 0 && p < 1, "dropout: p = ", p, " is not in [0, 1)");
  if (!context.training || p == 0) {
    return x;
  }
  require(context.numbers != nullptr, "dropout: the context has no step numbers");
  auto op = std::make_unique<DropoutOp>();
  op->p = p;
  op->site = site;
  Tensor y = dropped(context, x.value(), p, site);
  return context.record(std::move(y), std::move(op), {x});
}

}  // namespace tandem
