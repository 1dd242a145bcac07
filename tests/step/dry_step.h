// Steps of a transformer on one GPU that need not exist: nothing runs, and a clock counts.
#pragma once

#include "comm/transport/local_control.h"
#include "comm/transport/self_collectives.h"
#include "layers/models/model.h"
#include "optim/adamw.h"
#include "src/step/training_step.h"

namespace tandem::testing {

struct DryStep {
  // `model` must outlive this; it reads tokens [batch, context].
  DryStep(Model& model, int64_t batch, int64_t context, const Speed& speed,
          const StoreOptions& store, int64_t document_length = 0)
      : stream(Stream::dry(Device::kCuda, speed)),
        memory(stream),
        tokens{Tensor::empty(memory, {batch, context}, DType::kI32, MemoryClass::kData),
               Tensor::empty(memory, {batch * context}, DType::kI32, MemoryClass::kData)},
        training(model, data, stream, memory, staging,
                 {.batch = {.global_batch = batch, .given_micro_batch = 0, .ranks = 1},
                  .document_length = document_length,
                  .clip_norm = 1,
                  .store = store,
                  .optimizer = [](std::span<const Shard> shards, const OptimizerMemory& all) {
                    return make_optimizer(AdamWOptions{}, shards, all);
                  }}) {}

  void run(int64_t step = 0) {
    training.run({.step = step, .lr = 0, .targets = 1, .batch = [&](int64_t) { return tokens; }});
  }

  Stream stream;
  Memory memory;
  Stream host = Stream::dry(Device::kCpu, {});
  Memory staging{host};
  LocalControl control;
  SelfCollectives collectives;
  Group data{control, collectives, memory, {0}};
  DeviceBatch tokens;
  TrainingStep training;
};

}  // namespace tandem::testing
