#include "src/step/step_record.h"

#include <numeric>

#include "src/device/copy.h"
#include "src/kernels/reduce.h"

namespace tandem {

namespace {

static_assert(sizeof(StepState) % sizeof(double) == 0);
constexpr int64_t kState = sizeof(StepState) / sizeof(double);

template <class T>
Tensor staged(Memory& staging, const T& value, const Tensor& to) {
  return Tensor::of(std::as_bytes(std::span(&value, 1)), staging, to.shape(), to.dtype(),
                    MemoryClass::kStaging);
}

}  // namespace

StepRecord::StepRecord(Stream& stream, Memory& memory, Memory& staging,
                       const MicroBatches& micro_batches, const StepOptions& options)
    : staging_(staging),
      micro_batches_(micro_batches),
      options_(options),
      copies_(stream),
      numbers_(Tensor::empty(memory, {static_cast<int64_t>(sizeof(StepNumbers))}, DType::kU8,
                             MemoryClass::kOptimizer)),
      results_(Tensor::zeros(memory, {kState + 1 + micro_batches.all}, DType::kF64,
                             MemoryClass::kOptimizer)),
      figures_(results_.slice(kState, 1 + micro_batches.all)),
      zeros_(Tensor::zeros(memory, {1 + micro_batches.all}, DType::kF64, MemoryClass::kOptimizer)),
      loss_(Tensor::empty(memory, {1}, DType::kF64, MemoryClass::kOptimizer)),
      scratch_(Tensor::empty(memory, {kReduceScratch}, DType::kF64, MemoryClass::kWorkspace)) {
  restore(stream, first_state(options));
}

void StepRecord::send(StepNumbers numbers) {
  numbers.first_sample = micro_batches_.first_sample;
  copies_.copy(staged(staging_, numbers, numbers_), numbers_);  // copy_to_host() finishes it
}

void StepRecord::begin_step(Stream& stream) const {
  copy(stream, zeros_, figures_);
  on_device(stream, {}, [&](auto device) { kernels::begin_step(device, numbers(), state()); });
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
  const Tensor to = results_.slice(0, kState);
  copies_.copy(staged(staging_, state, to), to);
  static_cast<void>(copies_.finish());
  stream.synchronize();
}

StepRecord::Copy StepRecord::copy_to_host(const Tensor& stamps) {
  const auto copied = [this](const Tensor& from) {
    Tensor host = Tensor::empty(staging_, from.shape(), from.dtype(), MemoryClass::kStaging);
    copies_.copy(from, host);
    return host;
  };
  const Tensor results = copied(results_);
  return {.state = results.slice(0, kState),
          .figures = results.slice(kState, figures_.elements()),
          .stamps = stamps ? copied(stamps) : Tensor(),
          .done = copies_.finish()};
}

double StepRecord::Copy::loss() const {
  const std::span<const double> losses = figures.as<double>().subspan(1);
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

}  // namespace tandem
