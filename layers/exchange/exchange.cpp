#include "layers/exchange/exchange.h"

#include "src/autograd/gate.h"
#include "src/device/ranks/collectives.h"
#include "src/kernels/map.h"

namespace tandem {

namespace kernels {

template <class T>
void add_row_parts(Cpu, int64_t parts, int64_t rows, int64_t columns, const T* from, const T* bias,
                   T* to) {
#pragma omp parallel for schedule(static) if (parts * rows * columns >= kParallelElements)
  for (int64_t i = 0; i < rows; ++i) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      Wide<T> sum = from[i * columns + j];
      for (int64_t part = 1; part < parts; ++part) {
        sum += from[(part * rows + i) * columns + j];
      }
      to[i * columns + j] = T(bias ? sum + Wide<T>(bias[j]) : sum);
    }
  }
}

}  // namespace kernels

RowsInFlight RowsInFlight::gather(Context& context, const Tensor& x) {
  const int64_t rows = x.shape()[0] * context.tensor->size();
  RowsInFlight flight;
  flight.from_ = x;
  flight.to_ = context.activation(x.shape().with(0, rows), x.dtype());
  flight.start(context, &Collectives::all_gather);
  return flight;
}

RowsInFlight RowsInFlight::scatter(Context& context, const Tensor& x) {
  const int ranks = context.tensor->size();
  require(x.shape()[0] % ranks == 0, "scatter_add_rows: ", x.shape(), " over ", ranks, " ranks");
  RowsInFlight flight;
  flight.from_ = x;
  flight.to_ = context.workspace(x.shape(), x.dtype());
  flight.parts_ = ranks;
  flight.start(context, &Collectives::all_to_all);
  return flight;
}

void RowsInFlight::start(Context& context,
                         void (Collectives::*send)(const Tensor&, const Tensor&)) {
  Collectives& ranks = *context.tensor;
  ranks.stream().wait(context.stream.record());
  (ranks.*send)(from_, to_);
  there_ = ranks.stream().record();
}

Tensor RowsInFlight::take(Context& context, const Parameter* bias) {
  context.gate ? context.gate->await_exchange(context.stream, there_) : context.stream.wait(there_);
  from_ = Tensor();
  const Tensor there = std::exchange(to_, Tensor());
  if (parts_ == 1) {
    return there;
  }
  const int64_t rows = there.shape()[0] / parts_, columns = there.shape()[-1];
  Tensor sum = context.activation(there.shape().with(0, rows), there.dtype());
  const Tensor bias_value = bias ? bias->value : Tensor();
  on_device(
      context.stream, touching(there, bias_value, sum), there.dtype(), [&]<class T>(auto device) {
        kernels::add_row_parts(device, parts_, sum.elements() / columns, columns, there.data<T>(),
                               bias ? bias_value.data<T>() : nullptr, sum.data<T>());
      });
  return sum;
}

namespace {

struct GatherRowsOp final : Op {
  std::string_view name() const override { return "gather_rows"; }
  void backward(Context& context, Tensor& dy) override {
    input(0).add(context, RowsInFlight::scatter(context, dy).take(context));
  }
};

struct ScatterAddRowsOp final : Op {
  std::string_view name() const override { return "scatter_add_rows"; }
  void backward(Context& context, Tensor& dy) override {
    RowsInFlight all = RowsInFlight::gather(context, dy);
    if (parameter_wanted(0)) {
      add_rows(0, dy_row_sums() ? dy_row_sums() : sums_of_rows(context, dy));
    }
    input(0).add(context, all.take(context));
  }
};

}  // namespace

Variable gather_rows(Context& context, const Variable& x) {
  if (!context.tensor) {
    return x;
  }
  return context.record(RowsInFlight::gather(context, x.value()).take(context),
                        std::make_unique<GatherRowsOp>(), {x});
}

Variable scatter_add_rows(Context& context, Variable x, Parameter* bias) {
  if (!context.tensor) {
    return x;
  }
  Variable result = context.record(RowsInFlight::scatter(context, x.value()).take(context, bias),
                                   std::make_unique<ScatterAddRowsOp>(), {x}, {bias});
  if (result.wanted() && bias && bias->wanted() && context.stream.device() == Device::kCuda) {
    result.slot()->wants_row_sums = true;
  }
  return result;
}

}  // namespace tandem
