#include "src/step/step_record.h"

#include <numeric>

#include "src/device/copy.h"
#include "src/kernels/reduce.h"

namespace tandem {

namespace {

template <class T>
Tensor room_for(Memory& memory) {
  return Tensor::empty(memory, {static_cast<int64_t>(sizeof(T))}, DType::kU8,
                       MemoryClass::kOptimizer);
}

template <class T>
Tensor staged(Memory& staging, const T& value) {
  return Tensor::of(std::as_bytes(std::span(&value, 1)), staging, {static_cast<int64_t>(sizeof(T))},
                    DType::kU8, MemoryClass::kStaging);
}

Tensor on_host(Stream& stream, Memory& staging, const Tensor& tensor) {
  Tensor host = Tensor::empty(staging, tensor.shape(), tensor.dtype(), MemoryClass::kStaging);
  copy(stream, tensor, host);
  return host;
}

}  // namespace

StepRecord::StepRecord(Stream& stream, Memory& memory, Memory& staging,
                       const MicroBatches& micro_batches, const StepOptions& options)
    : staging_(staging),
      micro_batches_(micro_batches),
      options_(options),
      copies_(stream),
      numbers_(room_for<StepNumbers>(memory)),
      state_(room_for<StepState>(memory)),
      figures_(
          Tensor::zeros(memory, {1 + micro_batches.all}, DType::kF64, MemoryClass::kOptimizer)),
      zeros_(Tensor::zeros(memory, {1 + micro_batches.all}, DType::kF64, MemoryClass::kOptimizer)),
      loss_(Tensor::empty(memory, {1}, DType::kF64, MemoryClass::kOptimizer)),
      scratch_(Tensor::empty(memory, {kReduceScratch}, DType::kF64, MemoryClass::kWorkspace)) {
  restore(stream, first_state(options));
}

void StepRecord::begin_step(Stream& stream, StepNumbers numbers) {
  numbers.first_sample = micro_batches_.first * micro_batches_.samples;
  copies_.copy(staged(staging_, numbers), numbers_);
  copy(stream, zeros_, figures_);
  on_device(stream, {},
            [&](auto device) { kernels::begin_step(device, this->numbers(), state()); });
}

void StepRecord::end_micro_step(const Stream& stream, const Tensor& losses) const {
  on_device(stream, touching(losses), [&](auto device) {
    sum(device, losses.data<float>(), losses.elements(), loss_.data<double>(),
        scratch_.data<double>(), false);
    kernels::end_micro_step(device, numbers(), micro_batches_.samples, loss_.data<double>(),
                            figures_.data<double>() + 1 + micro_batches_.first);
  });
}

void StepRecord::decide(const Stream& stream) const {
  on_device(stream, touching(figures_), [&](auto device) {
    kernels::decide_step(device, state(), figures_.data<double>(), options_);
  });
}

void StepRecord::restore(Stream& stream, const StepState& state) {
  copies_.copy(staged(staging_, state), state_);
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
  const std::span<const double> losses = figures.as<double>().subspan(1);
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

}  // namespace tandem
