#include "optim/step_record.h"

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

StepRecord::StepRecord(Stream& stream, Memory& memory, Memory& staging, int64_t micro_batches,
                       const StepOptions& options)
    : staging_(staging),
      options_(options),
      state_(Tensor::empty(memory, {kStateBytes}, DType::kU8, MemoryClass::kOptimizer)),
      figures_(Tensor::zeros(memory, {1 + micro_batches}, DType::kF64, MemoryClass::kOptimizer)),
      zeros_(Tensor::zeros(memory, {1 + micro_batches}, DType::kF64, MemoryClass::kOptimizer)),
      scratch_(Tensor::empty(memory, {kReduceScratch}, DType::kF64, MemoryClass::kWorkspace)) {
  restore(stream, first_state(options));
}

void StepRecord::begin_step(Stream& stream) { copy(stream, zeros_, figures_); }

void StepRecord::add_up(const Stream& stream, int64_t micro_batch, const Tensor& losses) const {
  on_device(stream, [&](auto device) {
    sum(device, losses.data<float>(), losses.elements(), figures_.data<double>() + 1 + micro_batch,
        scratch_.data<double>(), false);
  });
}

void StepRecord::decide(const Stream& stream) const {
  on_device(stream, [&](auto device) {
    kernels::decide_step(device, state(), figures_.data<double>(), options_);
  });
}

void StepRecord::restore(Stream& stream, const StepState& state) {
  const Tensor host = Tensor::of(std::as_bytes(std::span(&state, 1)), staging_, state_.shape(),
                                 DType::kU8, MemoryClass::kStaging);
  copy(stream, host, state_);
  stream.synchronize();
}

StepRecord::Copy StepRecord::copy_to_host(Stream& stream) {
  Copy result{.done = {},
              .state = on_host(stream, staging_, state_),
              .figures = on_host(stream, staging_, figures_)};
  result.done = stream.record();
  return result;
}

double StepRecord::Copy::loss() const {
  double total = 0;
  for (const double loss : figures.as<double>().subspan(1)) {
    total += loss;
  }
  return total;
}

}  // namespace tandem
