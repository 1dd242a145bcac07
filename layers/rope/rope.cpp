#include "layers/rope/rope.h"

#include <algorithm>

#include "layers/rope/rope_rows.h"

namespace tandem {

namespace kernels {

namespace {

template <class T>
void rotate_row(const T* x, T* y, const Wide<T>* cosine, const Wide<T>* sine, int64_t row,
                int64_t heads, int64_t width) {
  const int64_t half = width / 2;
  for (int64_t h = 0; h < heads; ++h) {
    const T* from = x + h * width;
    T* to = y + h * width;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const Wide<T> first = from[i], second = from[i + half];
      to[i] = T(first * cosine[i] - second * sine[i]);
      to[i + half] = T(second * cosine[i] + first * sine[i]);
    }
  }
  if (x != y) {
    std::copy(x + heads * width, x + row, y + heads * width);
  }
}

}  // namespace

template <class T>
void rope_rotate(Cpu, const Rotation& of, const T* x, T* y, Wide<T> direction) {
  const int64_t row = of.row();
  rope_rows::for_rows(of, direction, [&](int64_t n, const Wide<T>* cosine, const Wide<T>* sine) {
    rotate_row(x + n * row, y + n * row, cosine, sine, row, of.turned_heads(), of.width);
  });
}

}  // namespace kernels

namespace {

struct RopeOp final : Op {
  kernels::Rotation rotation;
  Tensor positions;  // those of the rotation

  std::string_view name() const override { return "rope"; }
  void backward(Context& context, Tensor& dy) override {
    input(0).add(context, rotated(context, dy, -1));
  }
  // Reuses x's memory if no one else holds it.
  Tensor rotated(Context& context, const Tensor& x, double direction) const {
    Tensor y = x.unique() ? x : context.activation(x.shape(), x.dtype());
    // Values stay as they are.
    const int64_t turned = x.elements() / rotation.row() * rotation.turned_heads() * rotation.width;
    const Work work = touching(x.slice(0, turned), y.slice(0, turned));
    on_device(context.stream, work, x.dtype(), [&]<class T>(auto device) {
      kernels::rope_rotate(device, rotation, x.data<T>(), y.data<T>(),
                           static_cast<Wide<T>>(direction));
    });
    return y;
  }
};

}  // namespace

Variable rope(Context& context, Variable qkv, const HeadLayout& layout,
              const RopeFrequencies& frequencies) {
  require(qkv.shape().rank() == 3 && qkv.shape()[2] == layout.row() && layout.width % 2 == 0,
          "rope: qkv ", qkv.shape(), " with heads of width ", layout.width);
  auto op = std::make_unique<RopeOp>();
  op->positions = context.positions;
  op->rotation = {{layout, qkv.shape()[0], qkv.shape()[1]},
                  frequencies,
                  op->positions ? op->positions.data<int32_t>() : nullptr};
  Tensor y = op->rotated(context, qkv.value(), 1);
  return context.record(std::move(y), std::move(op), {qkv});
}

}  // namespace tandem
