// kernels: each op of a model that is no product, at its real shape. attention: forward and
// backward. Both run the layers' own functions on a tape, so they time what training runs.
#include <algorithm>
#include <cstdio>
#include <map>

#include "layers/activation/activation.h"
#include "layers/attention/attention.h"
#include "layers/cross_entropy/cross_entropy.h"
#include "layers/embedding/embedding.h"
#include "layers/linear/linear.h"
#include "layers/norm/norm.h"
#include "layers/rope/rope.h"
#include "optim/adamw.h"
#include "src/autograd/tape.h"
#include "src/device/copy.h"
#include "src/estimate/cost_model.h"
#include "src/kernels/reduce.h"
#include "tests/bench/gpu/cases.h"
#include "tests/bench/gpu/profile.h"

namespace tandem::bench {

namespace {

struct Passes {
  double forward_s = 0, backward_s = 0;
};

// A tensor in device memory that holds one value of a plain struct.
template <class T>
Tensor on_device_memory(Bench& bench, const T& value) {
  Memory host(Device::kCpu);
  const auto bytes = std::as_bytes(std::span(&value, 1));
  const Tensor from = Tensor::of(bytes, host, {std::ssize(bytes)}, DType::kU8, MemoryClass::kData);
  Tensor to = Tensor::empty(bench.memory, from.shape(), DType::kU8, MemoryClass::kData);
  copy(bench.stream, from, to);
  bench.stream.synchronize();
  return to;
}

class Kernels {
 public:
  explicit Kernels(Bench& bench)
      : bench_(bench), numbers_(on_device_memory(bench, StepNumbers{.seed = 1})) {}

  Parameter& parameter(const Shape& shape) {
    Parameter& made = *parameters_.emplace_back(std::make_unique<Parameter>());
    made.name = str("parameter ", parameters_.size());
    made.shape = shape;
    made.id = static_cast<ParamId>(parameters_.size()) - 1;
    made.value = bench_.random(shape, bench_.options.precision);
    made.grad = bench_.random(shape, DType::kF32);
    return made;
  }

  // Median seconds of the calls from the folder `group`, while `op` runs and is differentiated.
  Passes time(const std::string& group, const std::function<std::vector<Variable>(Context&)>& op) {
    Profile profile(bench_.stream);
    std::vector<Tensor> gradients;
    const int64_t runs = bench_.options.warm_up + bench_.options.runs;
    for (int64_t run = 0; run < runs; ++run) {
      Tape tape;
      Context context{.stream = bench_.stream,
                      .memory = bench_.memory,
                      .tape = &tape,
                      .numbers = reinterpret_cast<const StepNumbers*>(numbers_.raw()),
                      .training = true,
                      .attention = bench_.options.attention};
      for (const auto& each : parameters_) {
        each->grad_written = false;
      }
      profile.set_phase(2 * run);
      std::vector<Variable> results = op(context);
      std::vector<Tensor> dy;  // copies, because backward may overwrite them
      for (size_t i = 0; i < results.size(); ++i) {
        if (i >= gradients.size()) {
          gradients.push_back(bench_.random(results[i].shape(), results[i].dtype(), 1e-3));
        }
        dy.push_back(copy_of(gradients[i]));
      }
      profile.set_phase(2 * run + 1);
      tape.backward(context, std::move(results), std::move(dy));
    }
    std::vector<double> seconds(static_cast<size_t>(2 * runs), 0.0);
    for (const Profile::Call& call : profile.take()) {
      seconds[static_cast<size_t>(call.phase)] += call.group == group ? call.seconds : 0;
    }
    std::vector<double> forward, backward;
    for (size_t i = static_cast<size_t>(bench_.options.warm_up); i * 2 < seconds.size(); ++i) {
      forward.push_back(seconds[2 * i]);
      backward.push_back(seconds[2 * i + 1]);
    }
    return {median(forward), median(backward)};
  }

  Tensor copy_of(const Tensor& tensor) {
    Tensor to =
        Tensor::empty(bench_.memory, tensor.shape(), tensor.dtype(), MemoryClass::kActivations);
    copy(bench_.stream, tensor, to);
    return to;
  }

 private:
  Bench& bench_;
  Tensor numbers_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
};

// The rows of `kernels`.
class KernelRows {
 public:
  KernelRows(Bench& bench, const Case& model)
      : bench_(bench),
        config_(*model.transformer),
        batch_(model.batch),
        table_({"kernel", "us", "GB", "TB/s", "of a copy", "floor us", "of floor", "times"}),
        kernels_(bench) {
    for (const OpCost& op : transformer_costs(config_, model.batch, bench.options.precision)) {
      costs_[op.name] = op;
    }
  }

  void print() {
    const int64_t width = config_.width, rows = batch_ * config_.context;
    const Shape stream = {batch_, config_.context, width};
    embedding_rows();
    norm_rows(stream);
    if (config_.style.is_rotary) {
      op("RoPE", "rope", {batch_, config_.context, config_.head_layout().row()},
         [this](Context& context, const Variable& x) {
           return rope(context, x, config_.head_layout());
         });
      op("SwiGLU", "activation", {rows, 2 * config_.ffn_width},
         [](Context& context, const Variable& x) { return swiglu(context, x); });
    } else {
      op("GELU", "activation", {rows, config_.ffn_width},
         [](Context& context, const Variable& x) { return gelu(context, x); });
      const HeadLayout heads = config_.head_layout();
      if (!kernels::attention_on_tensor_cores(bench_.options.precision, heads.width)) {
        bias_row(rows, heads.row());  // otherwise attention takes the sum
      }
    }
    cross_entropy_rows(rows);
    optimizer_rows();
  }

 private:
  // Seconds of one call of the op `name` of the cost model. 0: nothing was called.
  void row(const std::string& name, double s) {
    const OpCost& cost = costs_.at(name);
    const double bytes = cost.schedule_bytes + cost.small_bytes;
    if (s == 0) {
      return table_.row(name, {"none", "", "", "", "", "", number(cost.calls)});
    }
    std::string share = "-", floor = "-", of_floor = "-";
    if (bench_.gpu()) {
      const Speed ceilings = bench_.gpu()->ceilings();
      const double floor_s = floor_seconds(cost, ceilings) / cost.calls;
      share = percent(bytes / s / ceilings.bytes_per_s);
      floor = number(floor_s * 1e6);
      of_floor = percent(floor_s / s);
    }
    table_.row(name, {number(s * 1e6), number(bytes / 1e9), rate(bytes, s), share, floor, of_floor,
                      number(cost.calls)});
  }

  // An op of one input, which is called `name` in the cost model.
  void op(const std::string& name, const std::string& group, const Shape& shape,
          const std::function<Variable(Context&, const Variable&)>& run) {
    const Tensor x = bench_.random(shape, bench_.options.precision);
    const Passes passes = kernels_.time(group, [&](Context& context) {
      return std::vector<Variable>{run(context, Variable::leaf(x))};
    });
    row(name + " forward", passes.forward_s);
    row(name + " backward", passes.backward_s);
  }

  void embedding_rows() {
    const Tensor tokens = bench_.random_ints({batch_, config_.context}, config_.vocab);
    Parameter& weight = kernels_.parameter({config_.vocab, config_.width});
    Parameter* positions =
        config_.style.is_rotary ? nullptr : &kernels_.parameter({config_.positions, config_.width});
    const Passes passes = kernels_.time("embedding", [&](Context& context) {
      return std::vector<Variable>{embedding(context, tokens, weight, positions)};
    });
    row("embedding forward", passes.forward_s);
    row("embedding backward", passes.backward_s);
  }

  void norm_rows(const Shape& shape) {
    const DType type = bench_.options.precision;
    const Tensor x = bench_.random(shape, type), branch = bench_.random(shape, type);
    Parameter &gain = kernels_.parameter({config_.width}),
              &bias = kernels_.parameter({config_.width});
    const Passes alone = kernels_.time("norm", [&](Context& context) {
      const Variable leaf = Variable::leaf(x);
      return std::vector<Variable>{!config_.style.is_biased
                                       ? rms_norm(context, leaf, gain)
                                       : layer_norm(context, leaf, gain, bias)};
    });
    const Passes both = kernels_.time("norm", [&](Context& context) {
      const Variable leaf = Variable::leaf(x), other = Variable::leaf(branch);
      const Normalized made = !config_.style.is_biased
                                  ? add_rms_norm(context, leaf, other, gain)
                                  : add_layer_norm(context, leaf, other, gain, bias);
      return std::vector<Variable>{made.sum, made.y};
    });
    row("norm forward, the first", alone.forward_s);
    row("residual add + norm forward", both.forward_s);
    row("norm backward", both.backward_s);
    row("norm backward, the last", alone.backward_s);
  }

  // The layer's product is as narrow as it can be, and not counted.
  void bias_row(int64_t rows, int64_t out) {
    constexpr int64_t kIn = 8;
    const Tensor x = bench_.random({rows, kIn}, bench_.options.precision);
    Parameter &weight = kernels_.parameter({out, kIn}), &bias = kernels_.parameter({out});
    const Passes passes = kernels_.time("linear", [&](Context& context) {
      return std::vector<Variable>{linear(context, Variable::leaf(x), weight, &bias)};
    });
    row("QKV bias gradient", passes.backward_s);
  }

  void cross_entropy_rows(int64_t rows) {
    const Tensor logits = bench_.random({rows, config_.vocab}, bench_.options.precision);
    const Tensor targets = bench_.random_ints({rows}, config_.vocab);
    const Tensor gradient = on_device_memory(bench_, 1e-3f);
    const Passes passes = kernels_.time("cross_entropy", [&](Context& context) {
      // As in a step: loss and gradient at once.
      context.loss_gradient = reinterpret_cast<const float*>(gradient.raw());
      cross_entropy(context, Variable::leaf(kernels_.copy_of(logits)), targets);
      return std::vector<Variable>{};
    });
    row("cross-entropy", passes.forward_s);
  }

  void optimizer_rows() {
    const auto elements = static_cast<int64_t>(transformer_parameters(config_));
    const bool is_wide = bench_.options.precision == DType::kF32;
    const Shard shard{
        .value = bench_.random({elements}, DType::kF32, 0.02),
        .grad = bench_.random({elements}, DType::kF32, 1e-3),
        .decay = true,
        .working = is_wide ? Tensor() : bench_.random({elements}, bench_.options.precision)};
    const auto optimizer = make_optimizer(AdamWOptions{}, std::span(&shard, 1), bench_.memory);
    const Tensor numbers = on_device_memory(bench_, StepNumbers{.lr = 1e-5});
    StepState first = first_state({});
    first.grad_scale = 1;
    first.apply = 1;
    first.updates = 1;
    const Tensor state = on_device_memory(bench_, first);
    const double update_s = bench_.seconds([&] {
      optimizer->step(bench_.stream, std::span(&shard, 1),
                      {reinterpret_cast<const StepNumbers*>(numbers.raw()),
                       reinterpret_cast<const StepState*>(state.raw())});
    });
    const Tensor sums =
        Tensor::empty(bench_.memory, {1 + kReduceScratch}, DType::kF64, MemoryClass::kWorkspace);
    const double norm_s = bench_.seconds([&] {
      on_device(bench_.stream, {}, [&](auto device) {
        squared_norm(device, shard.grad.data<float>(), elements, sums.data<double>(),
                     sums.data<double>() + 1, false);
      });
    });
    row("gradient norm", norm_s);
    row("AdamW", update_s);
  }

  Bench& bench_;
  TransformerConfig config_;
  int64_t batch_;
  Table table_;
  Kernels kernels_;
  std::map<std::string, OpCost> costs_;
};

}  // namespace

void kernels_bench(const Options& options) {
  const Case model = transformer_of(options);
  Bench bench(options);
  std::printf("%s, %s, %s, batch %ld, vocabulary %ld\n", bench.device_name().c_str(),
              model.name.c_str(), std::string(name_of(options.precision)).c_str(), model.batch,
              model.transformer->vocab);
  KernelRows(bench, model).print();
}

void attention_bench(const Options& options) {
  // GPT-2 124M, 350M, 774M and 1.5B, Llama 3.2 1B, and heads of 128.
  std::vector<std::vector<int64_t>> shapes = {{64, 1024, 12, 12, 64}, {32, 1024, 16, 16, 64},
                                              {16, 1024, 20, 20, 64}, {16, 1024, 25, 25, 64},
                                              {8, 2048, 32, 8, 64},   {8, 2048, 16, 16, 128},
                                              {4, 4096, 16, 4, 128}};
  if (!options.shape.empty()) {
    shapes = {options.shape};
  }
  Bench bench(options);
  Kernels kernels(bench);
  std::printf("%s, %s, causal%s\n", bench.device_name().c_str(),
              std::string(name_of(options.precision)).c_str(),
              options.attention == AttentionKernels::kCudnn ? ", cuDNN" : "");
  const Table table({"B, T, heads, KV heads, width", "forward us", "TFLOP/s", "backward us",
                     "TFLOP/s", "both TFLOP/s"});
  for (const auto& shape : shapes) {
    const int64_t batch = shape[0], length = shape[1];
    const HeadLayout layout{.heads = shape[2], .kv_heads = shape[3], .width = shape[4]};
    const Tensor qkv = bench.random({batch, length, layout.row()}, options.precision);
    const Passes passes = kernels.time("attention", [&](Context& context) {
      return std::vector<Variable>{attention(context, Variable::leaf(qkv), layout)};
    });
    const double product = static_cast<double>(length) * static_cast<double>(length) *
                           static_cast<double>(batch * layout.heads * layout.width);
    table.row(
        str(batch, ", ", length, ", ", layout.heads, ", ", layout.kv_heads, ", ", layout.width),
        {number(passes.forward_s * 1e6), rate(2 * product, passes.forward_s),
         number(passes.backward_s * 1e6), rate(5 * product, passes.backward_s),
         rate(7 * product, passes.forward_s + passes.backward_s)});
  }
}

}  // namespace tandem::bench
