// A multilayer perceptron whose middle matrices are cut over the ranks of a stage.
#pragma once

#include "comm/mesh.h"
#include "layers/activation/activation.h"
#include "layers/exchange/exchange.h"
#include "layers/linear/linear.h"
#include "layers/models/classifier.h"
#include "src/step/device_batch.h"
#include "tests/support/harness.h"

namespace tandem::testing {

// relu(in), then down(relu(up)) with `up` cut by columns and `down` by rows, then the head. Between
// them a rank of a stage has its share of a micro-batch's rows.
class CutMlp final : public Classifier {
 public:
  static constexpr int64_t kPixels = 6, kWidth = 10, kHidden = 12, kClasses = 5;
  static constexpr int64_t kBatch = 8;  // a global batch

  CutMlp(int slice, int slices)
      : Classifier(kClasses),
        in_("in", kPixels, kWidth, Initializer::normal(0.5)),
        up_(cut("up", {kHidden, kWidth}, 0, slice, slices)),
        up_bias_(cut("up.bias", {kHidden}, 0, slice, slices)),
        down_(cut("down", {kWidth, kHidden}, 1, slice, slices)),
        head_("head", kWidth, kClasses, Initializer::normal(0.5)) {
    add({{"in", in_.parameters()}, [this](Context& context, const Flow& x) -> Flow {
           return {relu(context, in_(context, x[0]))};
         }});
    add({{"middle", {&up_, &up_bias_, &down_}}, [this](Context& context, const Flow& x) -> Flow {
           const Variable all = gather_rows(context, x[0]);
           const Variable hidden = relu(context, linear(context, all, up_, &up_bias_));
           return {scatter_add_rows(context, linear(context, hidden, down_, nullptr))};
         }});
    add({{"head", head_.parameters()},
         [this](Context& context, const Flow& x) -> Flow { return {head_(context, x[0])}; }});
  }
  double flops_per_sample() const override { return 1; }

 private:
  static Parameter cut(const char* name, const Shape& whole, int axis, int slice, int slices) {
    const Shape part = whole.with(axis, whole[axis] / slices);
    const Shape start = Slice(whole).start().with(axis, slice * part[axis]);
    return {.name = name,
            .shape = part,
            .init = Initializer::normal(0.5),
            .decay = true,
            .pieces = {{name, Slice(whole, start, part)}}};
  }

  Linear in_;
  Parameter up_, up_bias_, down_;
  Linear head_;
};

// The rows of micro-batch `number` that this rank of the mesh has.
inline DeviceBatch rows_of(const Mesh& mesh, int64_t micro_batch, int64_t number, DType dtype) {
  const int64_t share = CutMlp::kBatch / mesh.size(Axis::kData);
  const int64_t count = micro_batch / mesh.size(Axis::kTensor);
  const int64_t first =
      mesh.index(Axis::kData) * share + number * micro_batch + mesh.index(Axis::kTensor) * count;
  const Tensor all = random_tensor({CutMlp::kBatch, CutMlp::kPixels}, dtype, 3);
  std::vector<int32_t> labels;
  for (int64_t i = first; i < first + count; ++i) {
    labels.push_back(static_cast<int32_t>((i * i + 2 * i) % CutMlp::kClasses));
  }
  const int64_t pixels = CutMlp::kPixels;
  return {
      all.reshape({all.elements()}).slice(first * pixels, count * pixels).reshape({count, pixels}),
      int_tensor({count}, labels)};
}

}  // namespace tandem::testing
