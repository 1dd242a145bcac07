// A model of one's own, trained on one rank on the CPU. README.md shows the model, and
// tests/style/check_readme.py compares the two. Exit code 1 when the loss does not fall to a half.
#include <cstdio>

#include "comm/transport/local_control.h"
#include "comm/transport/self_collectives.h"
#include "layers/activation/activation.h"
#include "layers/linear/linear.h"
#include "layers/models/classifier.h"
#include "optim/adamw.h"
#include "src/core/rng.h"
#include "src/step/training_step.h"

namespace tandem {
namespace {

// The README's block begins.
struct TwoLayers final : Classifier {  // points [B, 2] give logits [B, 2]
  Linear hidden{"hidden", 2, 32, Initializer::normal(1)};
  Linear head{"head", 32, 2, Initializer::normal(0.25)};

  TwoLayers() : Classifier(2) {  // two classes; the loss is their cross-entropy
    add({{"hidden", parameters_in(hidden)},
         [this](Context& c, const Flow& x) -> Flow { return {relu(c, hidden(c, x[0]))}; }});
    add({{"head", parameters_in(head)},
         [this](Context& c, const Flow& x) -> Flow { return {head(c, x[0])}; }});
  }
  double flops_per_sample() const override { return 6 * (2 * 32 + 32 * 2); }
};
// The README's block ends.

// Random points of the square from -1 to 1; those where both coordinates have the same sign are
// of class 1, which no straight line separates from the others.
DeviceBatch random_points(Memory& memory, int64_t count) {
  const DeviceBatch batch{Tensor::empty(memory, {count, 2}, DType::kF32, MemoryClass::kData),
                          Tensor::empty(memory, {count}, DType::kI32, MemoryClass::kData)};
  const PhiloxKey key = random_key(1, RandomUse::kSampleOrder);
  for (int64_t i = 0; i < count; ++i) {
    const PhiloxCounter words = random_words(key, static_cast<uint64_t>(i));
    const float x = 2 * uniform_from(words[0]) - 1, y = 2 * uniform_from(words[1]) - 1;
    batch.input.data<float>()[2 * i] = x;
    batch.input.data<float>()[2 * i + 1] = y;
    batch.targets.data<int32_t>()[i] = (x > 0) == (y > 0) ? 1 : 0;
  }
  return batch;
}

// Returns whether the model learned.
bool train() {
  constexpr int64_t kSteps = 200, kSamples = 64;
  Memory memory(Device::kCpu);
  Stream stream = Stream::compute(Device::kCpu);
  LocalControl control;
  SelfCollectives collectives;
  Group data(control, collectives, memory, {0});  // one rank, on node 0
  TwoLayers model;
  TrainingStep training(
      model, data, stream, memory, memory,
      {.batch = {.global_batch = kSamples, .given_micro_batch = 0, .ranks = data.size()},
       .optimizer = [](std::span<const Shard> shards, const OptimizerMemory& optimizer_memory) {
         return make_optimizer(AdamWOptions{}, shards, optimizer_memory);
       }});
  training.store().values.initialize(/*seed=*/1);

  const DeviceBatch points = random_points(memory, kSamples);
  double first = 0, loss = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const StepRecord::Copy record = training.run(
        {.step = step, .lr = 0.01, .targets = kSamples, .batch = [&](int64_t) { return points; }});
    record.done.synchronize();
    loss = record.loss() / kSamples;
    first = step == 0 ? loss : first;
    if (step % 50 == 0 || step + 1 == kSteps) {
      std::printf("step %3ld  loss %.4f\n", step + 1, loss);
    }
  }
  return loss < first / 2;
}

}  // namespace
}  // namespace tandem

int main() { return tandem::train() ? 0 : 1; }
