#include "layers/exchange/exchange.h"

#include "src/device/dispatch.h"
#include "src/device/ranks/collectives.h"
#include "src/kernels/reduce.h"

namespace tandem {

namespace {

// Runs what `send` enqueues on the ranks' stream, between what the compute stream did before and
// what it does later.
template <class F>
void exchange(Context& context, F send) {
  Collectives& ranks = *context.tensor;
  ranks.stream().wait(context.stream.record());
  send(ranks);
  context.stream.wait(ranks.stream().record());
}

Tensor gathered(Context& context, const Tensor& x) {
  const int64_t rows = x.shape()[0] * context.tensor->size();
  Tensor all = context.activation(x.shape().with(0, rows), x.dtype());
  exchange(context, [&](Collectives& ranks) { ranks.all_gather(x, all); });
  return all;
}

Tensor scattered(Context& context, const Tensor& x) {
  const int64_t ranks = context.tensor->size(), rows = x.shape()[0] / ranks;
  require(rows * ranks == x.shape()[0],
          [&] { return str("scatter_add_rows: ", x.shape(), " over ", ranks, " ranks"); });
  const Tensor parts = context.workspace(x.shape(), x.dtype());
  exchange(context, [&](Collectives& group) { group.all_to_all(x, parts); });
  Tensor sum = context.activation(x.shape().with(0, rows), x.dtype());
  on_device(context.stream, touching(parts, sum), x.dtype(), [&]<class T>(auto device) {
    kernels::sum_parts(device, ranks, sum.elements(), parts.data<T>(), sum.data<T>());
  });
  return sum;
}

struct GatherRowsOp final : Op {
  std::string_view name() const override { return "gather_rows"; }
  void backward(Context& context, Tensor& dy) override {
    input(0).add(context, scattered(context, dy));
  }
};

struct ScatterAddRowsOp final : Op {
  std::string_view name() const override { return "scatter_add_rows"; }
  void backward(Context& context, Tensor& dy) override {
    input(0).add(context, gathered(context, dy));
  }
};

}  // namespace

Variable gather_rows(Context& context, const Variable& x) {
  return context.tensor
             ? context.record(gathered(context, x.value()), std::make_unique<GatherRowsOp>(), {x})
             : x;
}

Variable scatter_add_rows(Context& context, const Variable& x) {
  return context.tensor ? context.record(scattered(context, x.value()),
                                         std::make_unique<ScatterAddRowsOp>(), {x})
                        : x;
}

}  // namespace tandem
