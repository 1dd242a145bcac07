#include "optim/step_record.h"

#include <cstring>

#include "src/core/copy.h"
#include "src/core/reduce.h"

namespace tandem {

namespace {

constexpr auto kStateBytes = static_cast<int64_t>(sizeof(StepState));

Tensor on_host(Stream& stream, Memory& staging, const Tensor& tensor) {
  Tensor host = Tensor::empty(staging, tensor.shape(), tensor.dtype(), MemoryClass::kStaging);
  copy(stream, tensor, host);
  return host;
}

}  // namespace

StepRecord::StepRecord(Stream& stream, Memory& memory, Memory& staging, int64_t losses,
                       const StepOptions& options)
    : staging_(staging),
      options_(options),
      state_(Tensor::empty(memory, {kStateBytes}, DType::kU8, MemoryClass::kOptimizer)),
      losses_(Tensor::zeros(memory, {losses}, DType::kF64, MemoryClass::kOptimizer)),
      scratch_(Tensor::empty(memory, {kReduceScratch}, DType::kF64, MemoryClass::kWorkspace)) {
  restore(stream, first_state(options));
}

void StepRecord::add_up(const Stream& stream, int64_t micro_step, const Tensor& losses) const {
  on_device(stream, [&](auto device) {
    sum(device, losses.data<float>(), losses.elements(), losses_.data<double>() + micro_step,
        scratch_.data<double>(), false);
  });
}

void StepRecord::decide(const Stream& stream, std::span<const Shard> shards) const {
  on_device(stream, [&](auto device) {
    bool add = false;
    for (const Shard& shard : shards) {
      squared_norm(device, shard.grad.data<float>(), shard.grad.elements(), &state()->squared_norm,
                   scratch_.data<double>(), add);
      add = true;
    }
    kernels::decide_step(device, state(), options_);
  });
}

void StepRecord::restore(Stream& stream, const StepState& state) {
  const Tensor host = Tensor::empty(staging_, state_.shape(), DType::kU8, MemoryClass::kStaging);
  std::memcpy(host.raw(), &state, sizeof state);
  copy(stream, host, state_);
  stream.synchronize();
}

StepRecord::Copy StepRecord::copy_to_host(Stream& stream) {
  Copy result{.done = {},
              .state = on_host(stream, staging_, state_),
              .losses = on_host(stream, staging_, losses_)};
  result.done = stream.record();
  return result;
}

}  // namespace tandem
