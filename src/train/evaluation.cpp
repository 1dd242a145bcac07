#include "src/train/evaluation.h"

#include <algorithm>

#include "layers/cross_entropy.h"
#include "src/core/reduce.h"

namespace tandem {

DeviceBatch upload(Memory& memory, const MicroBatch& batch, const DatasetInfo& info) {
  const auto copy = [&](const auto& from, Shape shape, DType dtype) {
    Tensor to = Tensor::empty(memory, shape, dtype, MemoryClass::kData);
    using T = std::decay_t<decltype(from[0])>;
    std::ranges::copy(from, to.data<T>());
    return to;
  };
  const Tensor targets =
      copy(batch.targets, {static_cast<int64_t>(batch.targets.size())}, DType::kI32);
  if (!batch.tokens.empty()) {
    const int64_t length = static_cast<int64_t>(batch.tokens.size()) / batch.samples;
    return {copy(batch.tokens, {batch.samples, length}, DType::kI32), targets};
  }
  return {copy(batch.images, {batch.samples, info.height, info.width, info.channels}, DType::kF32),
          targets};
}

Evaluation evaluate(Model& model, Gate& gate, const Dataset& dataset, int64_t context_length,
                    int64_t micro_batch, int64_t max_batches, Stream& stream, Memory& memory,
                    Communicator& communicator) {
  dataset.require_windows(Split::kVal, context_length);
  const int64_t windows = dataset.windows(Split::kVal, context_length);
  const int64_t all = (windows + micro_batch - 1) / micro_batch;
  const int64_t batches = max_batches > 0 ? std::min(max_batches, all) : all;
  Context context{.stream = stream, .memory = memory};
  std::vector<double> sums(static_cast<size_t>(3 * batches),
                           0.0);  // loss, correct, targets of each batch
  for (int64_t b = communicator.rank(); b < batches; b += communicator.size()) {
    const MicroBatch micro = dataset.validation_batch(context_length, b * micro_batch, micro_batch);
    const DeviceBatch batch = upload(memory, micro, dataset.info());
    const Variable logits = model.forward(context, gate, batch.input);
    const Variable losses = cross_entropy(context, logits, batch.targets);
    sums[3 * b + 1] = static_cast<double>(count_correct(context, logits.value(), batch.targets));
    sums[3 * b] = on_device_and_float(stream, losses.dtype(), [&]<class T>(auto device) {
      return sum(device, losses.data<T>(), losses.elements());
    });
    sums[3 * b + 2] = static_cast<double>(micro.target_count);
  }
  sums = communicator.sum(sums);
  double loss = 0, correct = 0, targets = 0;
  for (int64_t b = 0; b < batches; ++b) {
    loss += sums[3 * b];
    correct += sums[3 * b + 1];
    targets += sums[3 * b + 2];
  }
  return {loss / targets, correct / targets, static_cast<int64_t>(targets)};
}

}  // namespace tandem
