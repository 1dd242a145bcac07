#include "src/inference/evaluation.h"

#include <algorithm>
#include <cmath>

#include "src/device/copy.h"
#include "src/kernels/reduce.h"

namespace tandem {

namespace {

// The sums of one batch, in the memory of the device.
struct BatchResult {
  int64_t batch = 0;
  int64_t targets = 0;
  Tensor loss;     // f64 [1]: the sum over targets
  Tensor correct;  // i64 [1]
};

Tensor loss_sum(Context& context, const Tensor& losses) {
  const Tensor result = Tensor::empty(context.memory, {1}, DType::kF64, MemoryClass::kWorkspace);
  const Tensor scratch = context.workspace({kReduceScratch}, DType::kF64);
  on_device(context.stream, touching(losses), [&](auto device) {
    sum(device, losses.data<float>(), losses.elements(), result.data<double>(),
        scratch.data<double>(), false);
  });
  return result;
}

template <class T>
double on_host(Stream& stream, const Tensor& tensor) {
  Memory host(Device::kCpu);
  return static_cast<double>(*copied(stream, tensor, host).data<T>());
}

}  // namespace

Evaluation evaluate(Model& model, Context context, const Dataset& dataset, int64_t context_length,
                    int64_t micro_batch, int64_t max_batches, Uploader& uploader,
                    const ModelGroups& groups, const std::function<bool()>& stops) {
  constexpr int64_t kRoundsUnasked = 4;  // in these the stages of a pipeline need not wait
  dataset.require_windows(Split::kVal, context_length);
  const int64_t windows = dataset.windows(Split::kVal, context_length);
  const int64_t all = (windows + micro_batch - 1) / micro_batch;
  const int64_t batches = max_batches > 0 ? std::min(max_batches, all) : all;
  std::vector<BatchResult> results;
  const int64_t islands = groups.islands ? groups.islands->size() : 1;
  const int64_t ranks = groups.data.size() * islands, rounds = (batches + ranks - 1) / ranks;
  const bool counts = !groups.tensor || groups.tensor->rank() == 0;  // the targets of a batch
  const bool is_collective = groups.tensor || (context.gate && context.gate->is_collective());
  for (int64_t round = 0; round < rounds; ++round) {
    if (stops && round % kRoundsUnasked == 0 && stops()) {
      return {.loss = std::nan(""), .accuracy = std::nan("")};
    }
    const int64_t b = round * ranks + groups.island() * groups.data.size() + groups.data.rank();
    if (b >= batches && !is_collective) {
      break;
    }
    const MicroBatch micro = dataset.validation_batch(
        context_length, std::min(b, batches - 1) * micro_batch, micro_batch);
    uploader.send({&micro, 1});
    const DeviceBatch batch = uploader.fetch(0);
    context.positions = batch.positions;
    const Loss loss = model.loss(context, batch.input, batch.targets);
    if (b >= batches) {
      break;  // this rank has no batch in this round
    }
    results.push_back({.batch = b,
                       .targets = counts ? micro.target_count : 0,
                       .loss = loss_sum(context, loss.losses.value()),
                       .correct = loss.correct});
  }
  std::vector<double> sums(static_cast<size_t>(3 * batches),
                           0.0);  // loss, correct, targets of each batch
  for (const BatchResult& result : results) {
    sums[3 * result.batch] = on_host<double>(context.stream, result.loss);
    sums[3 * result.batch + 1] = on_host<int64_t>(context.stream, result.correct);
    sums[3 * result.batch + 2] = static_cast<double>(result.targets);
  }
  sums = groups.stage.control().sum(sums);
  if (groups.islands) {  // a batch runs on one of them, so this adds zeros
    sums = groups.islands->control().sum(sums);
  }
  double loss = 0, correct = 0, targets = 0;
  for (int64_t b = 0; b < batches; ++b) {
    loss += sums[3 * b];
    correct += sums[3 * b + 1];
    targets += sums[3 * b + 2];
  }
  return {loss / targets, correct / targets, static_cast<int64_t>(targets)};
}

}  // namespace tandem
