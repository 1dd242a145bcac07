#include "src/step/batch_statistics.h"

#include <algorithm>

#include "layers/batchnorm2d/running_statistics.h"
#include "src/device/copy.h"

namespace tandem {

BatchStatistics::BatchStatistics(Model& model, Stream& stream, Memory& memory,
                                 int64_t exact_micro_batches)
    : stream_(stream) {
  int64_t elements = 0;
  for (const RunningStatistics* statistics : model.statistics()) {
    for (int64_t half = 0; half < 2; ++half) {  // means, then variances
      segments_.push_back({.parameter = static_cast<ParamId>(segments_.size()),
                           .in_flat = elements,
                           .count = statistics->channels});
      elements += statistics->channels;
    }
  }
  if (elements == 0) {
    return;
  }
  const auto zeros = [&](Memory& where, DType dtype) {
    return Tensor::zeros(where, {elements}, dtype, MemoryClass::kOptimizer);
  };
  sum_ = zeros(memory, DType::kF32);
  running_ = zeros(memory, DType::kF32);
  Memory host(Device::kCpu);
  const Tensor start = zeros(host, DType::kF32);
  int64_t at = 0;
  for (RunningStatistics* statistics : model.statistics()) {
    const int64_t channels = statistics->channels;
    statistics->sum = sum_.slice(at, 2 * channels).reshape({2, channels});
    statistics->running = running_.slice(at, 2 * channels).reshape({2, channels});
    std::fill_n(start.data<float>() + at + channels, channels, 1.0f);
    at += 2 * channels;
  }
  copy(stream, start, running_);
  if (exact_micro_batches > 0) {
    exact_.emplace(stream, memory, static_cast<int64_t>(segments_.size()), exact_micro_batches);
    exact_sum_ = zeros(memory, DType::kI64);
  }
}

void BatchStatistics::begin_step() {
  written_ = false;
  if (exact_) {
    exact_->begin_step();
    zero(stream_, sum_);  // An attempt whose gradients did not fit leaves the sums of all ranks.
  }
}

void BatchStatistics::end_micro_step() {
  if (!exact_) {
    return;
  }
  exact_->quantise(sum_, segments_, exact_sum_, written_);
  written_ = true;
  zero(stream_, sum_);
}

bool BatchStatistics::reduce(const Group& data, Timeline& timeline) {
  if (!sum_) {
    return true;
  }
  if (exact_) {
    const ExactSums::Verdict verdict = timeline.during(
        stream_, Phase::kCommunication, [&] { return exact_->judge(data.control()); });
    if (verdict != ExactSums::Verdict::kGood) {
      return verdict == ExactSums::Verdict::kNonFinite;  // then the step is skipped anyway
    }
  }
  if (data.size() > 1) {
    data.stream().wait(stream_.record());
    data.collectives().all_reduce(exact_ ? exact_sum_ : sum_, Traffic::kControl);
    timeline.wait(stream_, data.stream().record());
  }
  if (exact_) {
    exact_->dequantise(exact_sum_, segments_, sum_);
  }
  return true;
}

void BatchStatistics::update(const StepState* state, int64_t micro_batches) {
  if (!sum_) {
    return;
  }
  constexpr double kMomentum = 0.1;
  const double scale = kMomentum / static_cast<double>(micro_batches);
  on_device(stream_, touching(running_, running_, sum_), [&](auto device) {
    kernels::update_running(device, sum_.elements(), running_.data<float>(), sum_.data<float>(),
                            static_cast<float>(kMomentum), static_cast<float>(scale),
                            &state->apply);
  });
}

}  // namespace tandem
