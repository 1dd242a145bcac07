#include "layers/lora/lora.h"

#include <cmath>

#include "src/core/error.h"
#include "src/product/product.h"

namespace tandem {

namespace {

// Columns [first, first + count) of a matrix, as an operand.
Product::Operand columns(const Tensor& matrix, int64_t first, bool transposed = false) {
  return {.data = matrix.slice(first, matrix.elements() - first),
          .stride = matrix.shape()[-1],
          .transposed = transposed};
}

// Rows of a matrix, as an operand.
Product::Operand rows(const Tensor& matrix, Range range, bool transposed = false) {
  const int64_t width = matrix.shape()[1];
  return {.data = matrix.slice(range.begin * width, range.count() * width),
          .stride = width,
          .transposed = transposed};
}

// Calls visit(columns of y, rows of B, first column of x A^T) for each target.
template <class F>
void for_each_target(const std::vector<Range>& outputs, int64_t rank, F visit) {
  int64_t first_row = 0, first_column = 0;
  for (const Range& range : outputs) {
    visit(range, Range{first_row, first_row + range.count()}, first_column);
    first_row += range.count();
    first_column += rank;
  }
}

// Inputs: x, y. Parameters: A [n r, in], B [outputs of all targets, r].
struct LoraOp final : Op {
  Tensor x;       // [..., in]; empty if A is frozen
  Tensor hidden;  // x A^T, [..., n r]; empty if B is frozen
  std::vector<Range> outputs;
  double scale = 1;

  std::string_view name() const override { return "lora"; }
  void backward(Context& context, Tensor& dy) override {
    if (const GradTarget db = parameter_target(1); db.into) {
      differentiate_b(context, dy, db);
    }
    if (parameter_wanted(0) || input(0).wanted()) {
      differentiate_hidden(context, hidden_gradient(context, dy));
    }
    if (input(1).wanted()) {
      input(1).add(context, dy, dy_row_sums());
    }
  }

 private:
  int64_t rank() { return parameter(1).shape[1]; }

  void differentiate_b(Context& context, const Tensor& dy, const GradTarget& db) {
    for_each_target(outputs, rank(), [&](Range columns_of_y, Range rows_of_b, int64_t first) {
      multiply(context.stream, {.m = rows_of_b.count(),
                                .n = rank(),
                                .k = dy.elements() / dy.shape()[-1],
                                .a = columns(dy, columns_of_y.begin, true),
                                .b = columns(hidden, first),
                                .d = rows(db.into, rows_of_b),
                                .alpha = scale,
                                .beta = static_cast<double>(db.beta)});
    });
  }

  // [rows, n r]
  Tensor hidden_gradient(Context& context, const Tensor& dy) {
    const int64_t count = dy.elements() / dy.shape()[-1];
    Tensor gradient = context.workspace({count, parameter(0).shape[0]}, dy.dtype());
    for_each_target(outputs, rank(), [&](Range columns_of_y, Range rows_of_b, int64_t first) {
      multiply(context.stream, {.m = count,
                                .n = rank(),
                                .k = rows_of_b.count(),
                                .a = columns(dy, columns_of_y.begin),
                                .b = rows(parameter(1).value, rows_of_b),
                                .d = columns(gradient, first),
                                .alpha = scale});
    });
    return gradient;
  }

  void differentiate_hidden(Context& context, const Tensor& gradient) {
    const int64_t count = gradient.shape()[0], ranks = parameter(0).shape[0],
                  in = parameter(0).shape[1];
    if (const GradTarget da = parameter_target(0); da.into) {
      multiply(context.stream, {.m = ranks,
                                .n = in,
                                .k = count,
                                .a = {.data = gradient, .transposed = true},
                                .b = {.data = x},
                                .d = {.data = da.into},
                                .beta = static_cast<double>(da.beta)});
    }
    if (input(0).wanted()) {
      const GradTarget dx = input(0).target(context);
      multiply(context.stream, {.m = count,
                                .n = in,
                                .k = ranks,
                                .a = {.data = gradient},
                                .b = {.data = parameter(0).value},
                                .d = {.data = dx.into},
                                .beta = static_cast<double>(dx.beta)});
    }
  }
};

}  // namespace

Adapters::Adapters(const std::string& layer, const std::vector<Target>& targets, int64_t in,
                   const LoraOptions& options)
    : scale_(options.alpha / static_cast<double>(options.rank)),
      a_{.name = str(layer, kLoraA),
         .shape = {std::ssize(targets) * options.rank, in},
         .init = Initializer::uniform(1 / std::sqrt(static_cast<double>(in))),
         .decay = true},
      b_{.name = str(layer, kLoraB),
         .shape = {0, options.rank},
         .init = Initializer::constant(0),
         .decay = true} {
  const int64_t rank = options.rank;
  int64_t outputs = 0;
  for (const Target& target : targets) {
    outputs_.push_back(target.outputs);
    outputs += target.outputs.count();
    a_.pieces.push_back({str(target.name, kLoraA), Shape{rank, in}});
    b_.pieces.push_back({str(target.name, kLoraB), Shape{target.outputs.count(), rank}});
  }
  b_.shape = {outputs, rank};
}

Variable Adapters::operator()(Context& context, const Variable& x, Variable y) {
  const int64_t all_ranks = a_.shape[0], in = a_.shape[1], rank = b_.shape[1];
  const int64_t count = x.elements() / in;
  require(x.shape()[-1] == in && y.elements() / y.shape()[-1] == count,
          [&] { return str(a_.name, ": x ", x.shape(), ", y ", y.shape()); });
  require(y.value().unique(), "adapters overwrite y, which another tensor shares");
  const Tensor hidden = context.activation(x.shape().with(-1, all_ranks), x.dtype());
  multiply(context.stream, {.m = count,
                            .n = all_ranks,
                            .k = in,
                            .a = {.data = x.value()},
                            .b = {.data = a_.value, .transposed = true},
                            .d = {.data = hidden}});
  const Tensor& sum = y.value();
  for_each_target(outputs_, rank, [&](Range columns_of_y, Range rows_of_b, int64_t first) {
    multiply(context.stream, {.m = count,
                              .n = rows_of_b.count(),
                              .k = rank,
                              .a = columns(hidden, first),
                              .b = rows(b_.value, rows_of_b, true),
                              .d = columns(sum, columns_of_y.begin),
                              .alpha = scale_,
                              .beta = 1});
  });
  auto op = std::make_unique<LoraOp>();
  op->x = a_.wanted() ? x.value() : Tensor();
  op->hidden = b_.wanted() ? hidden : Tensor();
  op->outputs = outputs_;
  op->scale = scale_;
  return context.record(sum, std::move(op), {x, y}, {&a_, &b_});
}

}  // namespace tandem
