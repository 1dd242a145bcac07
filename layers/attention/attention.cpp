#include "layers/attention/attention.h"

#include <algorithm>

#include "layers/attention/attention_choice.h"

namespace tandem {

namespace kernels {

void limit_to_window(Cpu, const int32_t* positions, int32_t* seen, const AttentionSizes& sizes,
                     int64_t window) {
  for (int64_t i = 0; i < sizes.batch * sizes.length; ++i) {
    const int64_t before = positions ? positions[i] : i % sizes.length;
    seen[i] = static_cast<int32_t>(std::min(before, window - 1));
  }
}

}  // namespace kernels

namespace {

Tensor attention_workspace(const Context& context, DType dtype, const AttentionSizes& sizes) {
  return context.workspace({kernels::attention_workspace(context.stream.device(), dtype, sizes)},
                           wide_of(dtype));
}

bool by_cudnn(const Context& context, const cudnn_attention::Problem& problem,
              const Tensor& positions) {
  require_attention(context.attention, context.stream, problem.dtype);
  if (positions) {
    require(context.attention != AttentionKernels::kCudnn,
            "attention: cuDNN's kernels know neither documents nor windows");
    return false;
  }
  if constexpr (kHasCuda) {
    if (context.attention == AttentionKernels::kAuto) {
      return is_by_cudnn(context.stream, problem);
    }
  }
  return context.attention == AttentionKernels::kCudnn;
}

Tensor cudnn_workspace(const Context& context, const cudnn_attention::Problem& problem, Pass pass) {
  const int64_t bytes = context.stream.is_dry()
                            ? cudnn_attention::estimated_workspace_bytes(problem, pass)
                            : cudnn_attention::workspace_bytes(problem, pass);
  return context.workspace({(bytes + 3) / 4}, DType::kF32);
}

// Calls f(Cuda) unless the stream, which is of a GPU, is dry.
template <class F>
void on_cuda(const Stream& stream, const Work& work, F&& f) {
  on_device(stream, work, [&](auto device) {
    if constexpr (std::is_same_v<decltype(device), Cuda>) {
      f(device);
    }
  });
}

// The tokens before its own that each query sees, i32 [B, T]; empty: all of its row.
Tensor seen_before(const Context& context, const AttentionSizes& sizes, int64_t window) {
  if (window == 0 || window >= sizes.length) {
    return context.positions;
  }
  const Tensor& positions = context.positions;
  const Tensor seen = context.activation({sizes.batch, sizes.length}, DType::kI32);
  on_device(context.stream, positions ? touching(positions, seen) : touching(seen),
            [&](auto device) {
              kernels::limit_to_window(device, positions ? positions.data<int32_t>() : nullptr,
                                       seen.data<int32_t>(), sizes, window);
            });
  return seen;
}

struct AttentionOp final : Op {
  AttentionSizes sizes;
  Tensor qkv;        // [B, T, row]
  Tensor y;          // [B, T, heads * width]
  Tensor log_sum;    // [B, heads, T], f32 or, for f64 qkv, f64
  Tensor positions;  // seen_before
  int64_t window = 0;
  bool is_by_cudnn = false;

  std::string_view name() const override { return "attention"; }

  const int32_t* positions_data() const { return positions ? positions.data<int32_t>() : nullptr; }
  cudnn_attention::Problem problem() const {
    return {.dtype = qkv.dtype(), .batch = sizes.batch, .length = sizes.length, .layout = sizes};
  }

  // The work of `count` products of [T, T] and [T, width] matrices, of which only seen pairs count.
  Work work_of(const Context& context, double count, double bytes) const {
    const double pairs = seen_pairs(sizes.length, context.document_length, window);
    const auto width = static_cast<double>(sizes.batch * sizes.heads * sizes.width);
    return {.attention = 2 * count * pairs * width, .bytes = bytes};
  }

  void forward(Context& context) {
    const Work work = work_of(context, 2, touching(qkv, y, log_sum).bytes);
    is_by_cudnn = by_cudnn(context, problem(), positions);
    if (is_by_cudnn) {
      const Tensor workspace = cudnn_workspace(context, problem(), Pass::kForward);
      return on_cuda(context.stream, work, [&](Cuda device) {
        cudnn_attention::forward(device.stream, problem(), qkv.raw(), y.raw(),
                                 log_sum.data<float>(), workspace.raw());
      });
    }
    const Tensor workspace = attention_workspace(context, qkv.dtype(), sizes);
    on_device(context.stream, work, qkv.dtype(), [&]<class T>(auto device) {
      kernels::attention_forward(device, qkv.data<T>(), positions_data(), y.data<T>(),
                                 log_sum.data<Wide<T>>(), sizes, workspace.data<Wide<T>>());
    });
  }

  void backward(Context& context, Tensor& dy) override {
    const GradTarget dqkv = input(0).target(context);
    // 5, not 4: the scores are computed again.
    const Work work = work_of(context, 5, touching(qkv, y, dy, dqkv, log_sum).bytes);
    if (is_by_cudnn && dqkv.beta == 0) {
      const Tensor workspace = cudnn_workspace(context, problem(), Pass::kBackward);
      return on_cuda(context.stream, work, [&](Cuda device) {
        cudnn_attention::backward(device.stream, problem(), dy.raw(), qkv.raw(), y.raw(),
                                  log_sum.data<float>(), dqkv.into.raw(), workspace.raw());
      });
    }
    const Tensor workspace = attention_workspace(context, qkv.dtype(), sizes);
    const int64_t chunks = kernels::attention_row_chunks(context.stream.device(), qkv.dtype(),
                                                         sizes.batch, sizes.length, sizes.width);
    Tensor row_sums;
    if (chunks > 0 && input(0).wants_row_sums() && dqkv.beta == 0) {
      row_sums = context.workspace({chunks, sizes.row()}, wide_of(qkv.dtype()));
    }
    on_device(context.stream, work, dy.dtype(), [&]<class T>(auto device) {
      kernels::attention_backward(device, dy.data<T>(), qkv.data<T>(), positions_data(),
                                  y.data<T>(), log_sum.data<Wide<T>>(), dqkv.into.data<T>(),
                                  Wide<T>(dqkv.beta), sizes, workspace.data<Wide<T>>(),
                                  row_sums ? row_sums.data<Wide<T>>() : nullptr);
    });
    if (row_sums) {
      input(0).set_row_sums(std::move(row_sums));
    }
  }
};

}  // namespace

void require_layout(const Variable& qkv, const HeadLayout& layout) {
  require(qkv.shape().rank() == 3 && qkv.shape()[2] == layout.row() &&
              layout.heads % layout.kv_heads == 0,
          [&] {
            return str("attention: qkv ", qkv.shape(), " with ", layout.heads, " heads, ",
                       layout.kv_heads, " key-value heads of width ", layout.width);
          });
}

void require_attention(AttentionKernels kernels, const Stream& stream, DType dtype) {
  if (kernels != AttentionKernels::kCudnn) {
    return;
  }
  const auto refuse = [](const std::string& why) {
    fail(ExitCode::kConfig, str("kernels.attention = cudnn: ", why, ", or use own"));
  };
  if (stream.device() == Device::kCpu) {
    refuse("cuDNN computes on GPUs; set run.device = cuda");
  }
  if (dtype != DType::kBf16 && dtype != DType::kFp16) {
    refuse(str("cuDNN's attention is for bf16 and fp16, not ", name_of(dtype),
               "; set train.precision"));
  }
  if (!stream.is_dry() && !cudnn_attention::why_missing().empty()) {
    refuse(cudnn_attention::why_missing());
  }
}

double seen_pairs(int64_t length, int64_t document, int64_t window) {
  const int64_t row = document > 0 ? std::min(document, length) : length;
  const auto keys = static_cast<double>(window > 0 ? std::min(window, row) : row);
  return static_cast<double>(length) * (keys - keys * keys / (2 * static_cast<double>(row)));
}

Variable attention(Context& context, const Variable& qkv, const HeadLayout& layout,
                   int64_t window) {
  require_layout(qkv, layout);
  const int64_t batch = qkv.shape()[0], length = qkv.shape()[1];
  auto op = std::make_unique<AttentionOp>();
  op->sizes = {layout, batch, length};
  op->qkv = qkv.value();
  op->positions = seen_before(context, op->sizes, window);
  op->window = window;
  op->y = context.activation({batch, length, layout.heads * layout.width}, qkv.dtype());
  op->log_sum = context.activation({batch, layout.heads, length}, wide_of(qkv.dtype()));
  op->forward(context);
  Tensor y = op->y;
  return context.record(std::move(y), std::move(op), {qkv});
}

}  // namespace tandem
