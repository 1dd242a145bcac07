#include "layers/attention/attention.h"

namespace tandem {

namespace {

Tensor attention_workspace(const Context& context, const Tensor& qkv, const HeadLayout& layout) {
  return context.workspace(
      {kernels::attention_workspace(context.stream.device(), qkv.dtype(), qkv.shape()[0],
                                    qkv.shape()[1], layout.heads, layout.width)},
      wide_of(qkv.dtype()));
}

// Charges `count` products of [T, T] and [T, width] matrices; the mask leaves half of [T, T].
void charge_products(const Context& context, const Tensor& qkv, const HeadLayout& layout,
                     double count) {
  const double length = static_cast<double>(qkv.shape()[1]);
  const double width = static_cast<double>(qkv.shape()[0] * layout.heads * layout.width);
  context.stream.charge({.flops = count * length * length * width});
}

struct AttentionOp final : Op {
  HeadLayout layout;
  Tensor qkv;      // [B, T, row]
  Tensor y;        // [B, T, heads * width]
  Tensor log_sum;  // [B, heads, T], f32 or, for f64 qkv, f64

  std::string_view name() const override { return "attention"; }
  void backward(Context& context, Tensor& dy) override {
    const int64_t batch = qkv.shape()[0], length = qkv.shape()[1];
    const GradTarget dqkv = input(0).target(context);
    const Tensor workspace = attention_workspace(context, qkv, layout);
    charge_products(context, qkv, layout, 5);  // 5, not 4: the scores are computed again
    on_device_and_float(context.stream, dy.dtype(), [&]<class T>(auto device) {
      kernels::attention_backward(device, dy.data<T>(), qkv.data<T>(), y.data<T>(),
                                  log_sum.data<Wide<T>>(), dqkv.into.data<T>(), Wide<T>(dqkv.beta),
                                  batch, length, layout.heads, layout.kv_heads, layout.width,
                                  workspace.data<Wide<T>>());
    });
  }
};

void require_layout(const Variable& qkv, const HeadLayout& layout) {
  require(qkv.shape().rank() == 3 && qkv.shape()[2] == layout.row() &&
              layout.heads % layout.kv_heads == 0,
          [&] {
            return str("attention: qkv ", qkv.shape(), " with ", layout.heads, " heads, ",
                       layout.kv_heads, " key-value heads of width ", layout.width);
          });
}

}  // namespace

Variable attention(Context& context, const Variable& qkv, const HeadLayout& layout) {
  require_layout(qkv, layout);
  const int64_t batch = qkv.shape()[0], length = qkv.shape()[1];
  auto op = std::make_unique<AttentionOp>();
  op->layout = layout;
  op->qkv = qkv.value();
  op->y = context.activation({batch, length, layout.heads * layout.width}, qkv.dtype());
  op->log_sum = context.activation({batch, layout.heads, length}, wide_of(qkv.dtype()));
  const Tensor workspace = attention_workspace(context, qkv.value(), layout);
  charge_products(context, qkv.value(), layout, 2);
  on_device_and_float(context.stream, qkv.dtype(), [&]<class T>(auto device) {
    kernels::attention_forward(device, qkv.data<T>(), op->y.data<T>(), op->log_sum.data<Wide<T>>(),
                               batch, length, layout.heads, layout.kv_heads, layout.width,
                               workspace.data<Wide<T>>());
  });
  Tensor y = op->y;
  return context.record(std::move(y), std::move(op), {qkv});
}

Variable attention_cached(Context& context, const Variable& qkv, const HeadLayout& layout,
                          KeyValueCache& cache) {
  require_layout(qkv, layout);
  const kernels::CacheSizes sizes{.batch = qkv.shape()[0],
                                  .first = cache.length,
                                  .length = qkv.shape()[1],
                                  .capacity = cache.keys.shape()[2]};
  require(!context.tape && sizes.batch == cache.keys.shape()[0] && sizes.end() <= sizes.capacity,
          [&] {
            return str("attention_cached: qkv ", qkv.shape(), " after ", cache.length,
                       " positions of keys ", cache.keys.shape());
          });
  cache.length = sizes.end();
  on_device_and_float(context.stream, qkv.dtype(), [&]<class T>(auto device) {
    kernels::cache_append(device, qkv.data<T>(), cache.keys.data<T>(), cache.values.data<T>(),
                          sizes, layout);
  });
  if (sizes.first == 0) {
    return attention(context, qkv, layout);
  }
  Tensor y =
      context.activation({sizes.batch, sizes.length, layout.heads * layout.width}, qkv.dtype());
  const Tensor workspace = context.workspace(
      {kernels::attention_from_cache_workspace(context.stream.device(), sizes, layout)},
      wide_of(qkv.dtype()));
  on_device_and_float(context.stream, qkv.dtype(), [&]<class T>(auto device) {
    kernels::attention_from_cache(device, qkv.data<T>(), cache.keys.data<T>(),
                                  cache.values.data<T>(), y.data<T>(), sizes, layout,
                                  workspace.data<Wide<T>>());
  });
  return Variable(std::move(y));
}

}  // namespace tandem
