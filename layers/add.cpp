#include "layers/add.h"

#include "src/core/map.h"

namespace tandem {

namespace {

struct AddOp final : Op {
  std::string_view name() const override { return "add"; }
  void backward(Context& context, Tensor& dy) override {
    for (size_t i : {0, 1}) {
      if (input(i).wanted()) {
        input(i).add(context, dy);
      }
    }
  }
};

}  // namespace

Variable add(Context& context, const Variable& x, Variable branch) {
  require(x.shape() == branch.shape(),
          [&] { return str("add: ", x.shape(), " and ", branch.shape()); });
  Tensor y = branch.value().unique() ? branch.value() : context.activation(x.shape(), x.dtype());
  on_device_and_float(context.stream, x.dtype(), [&]<class T>(auto device) {
    map(device, x.elements(), [a = x.data<T>(), b = branch.data<T>(), to = y.data<T>()](int64_t i) {
      to[i] = a[i] + b[i];
    });
  });
  return context.record(std::move(y), std::make_unique<AddOp>(), {x, branch});
}

}  // namespace tandem
