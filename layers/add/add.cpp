#include "layers/add/add.h"

#include "src/kernels/elementwise.h"

namespace tandem {

namespace {

struct AddOp final : Op {
  std::string_view name() const override { return "add"; }
  void backward(Context& context, Tensor& dy) override {
    for (size_t i : {0, 1}) {
      if (input(i).wanted()) {
        input(i).add(context, dy, dy_row_sums());
      }
    }
  }
};

}  // namespace

Variable add(Context& context, const Variable& x, Variable branch) {
  require(x.shape() == branch.shape(), "add: ", x.shape(), " and ", branch.shape());
  Tensor y = branch.value().unique() ? branch.value() : context.activation(x.shape(), x.dtype());
  const Work work = touching(x.value(), branch.value(), y);
  on_device(context.stream, work, x.dtype(), [&]<class T>(auto device) {
    kernels::add(device, x.elements(), x.data<T>(), branch.data<T>(), y.data<T>());
  });
  return record_sum(context, std::move(y), x, branch);
}

Variable record_sum(Context& context, Tensor sum, const Variable& x, const Variable& branch) {
  Variable result = context.record(std::move(sum), std::make_unique<AddOp>(), {x, branch});
  if (result.wanted()) {
    result.slot()->wants_row_sums = Input(x).wants_row_sums() || Input(branch).wants_row_sums();
  }
  return result;
}

}  // namespace tandem
