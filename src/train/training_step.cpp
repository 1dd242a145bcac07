#include "src/train/training_step.h"

#include "optim/adamw.h"
#include "optim/sgd.h"
#include "src/core/profiler_range.h"

namespace tandem {

namespace {

std::unique_ptr<Optimizer> make_optimizer(const OptimConfig& optim, std::span<const Shard> shards,
                                          Memory& memory) {
  return optim.kind == OptimizerKind::kAdamW ? make_adamw(optim.adamw(), shards, memory)
                                             : make_sgd(optim.sgd(), shards, memory);
}

ParamStore::Options store_options(const Config& config, int64_t exact_leaves) {
  return {.bucket_bytes = static_cast<int64_t>(config.dist.bucket_mb * (1 << 20)),
          .overlap = config.dist.overlap,
          .zero = static_cast<int>(config.dist.zero),
          .unused_is_error = config.dist.unused == Unused::kIsError,
          .dtype = config.train.precision,
          .wire_dtype = config.dist.wire_dtype,
          .exact_leaves = exact_leaves};
}

}  // namespace

TrainingStep::TrainingStep(Model& model, Hierarchy& data, Stream& stream, Memory& memory,
                           Memory& staging, const Config& config)
    : model_(model),
      data_(data),
      stream_(stream),
      memory_(memory),
      seed_(static_cast<uint64_t>(config.run.seed)),
      batch_(config.train.batch_plan(data.size())),
      recompute_(config.train.recompute),
      options_{.clip_norm = config.optim.clip_norm,
               .dynamic_scale = config.train.precision == DType::kFp16},
      tape_([this](Context& context, Parameter& parameter) {
        store_->gradients.on_final(context, parameter);
      }) {
  const int64_t exact_leaves = config.dist.reduce == Reduce::kExact ? batch_.micro_batches() : 0;
  store_ = std::make_unique<ParamStore>(parameters_by_block(model), data, stream, memory,
                                        store_options(config, exact_leaves));
  statistics_ = std::make_unique<BatchStatistics>(model, stream, memory, exact_leaves);
  record_ = std::make_unique<StepRecord>(
      stream, memory, staging,
      StepRecord::MicroBatches{.all = batch_.micro_batches(),
                               .first = batch_.accumulation() * data.rank(),
                               .samples = batch_.micro_batch()},
      options_);
  optimizer_ = make_optimizer(config.optim, store_->shards.all(), memory);
}

void TrainingStep::run(const Input& input) {
  for (int attempt = 1; !run_micro_steps(input); ++attempt) {
    require(attempt == 1, [&] {
      return str("step ", input.step + 1, ": exact sums do not fit exponents of the same step");
    });
  }
  sum_figures();
  record_->decide(stream_);
  const ProfilerRange range("optimizer");
  statistics_->update(record_->state(), batch_.micro_batches());
  optimizer_->step(stream_, store_->shards.all(),
                   {.numbers = record_->numbers(), .state = record_->state()});
  input.before_gather();
  store_->values.gather();
}

// False when exact sums did not fit: all ranks run the micro-steps again.
bool TrainingStep::run_micro_steps(const Input& input) {
  store_->gradients.begin_step();
  statistics_->begin_step();
  record_->begin_step(stream_, {.seed = seed_,
                                .step = static_cast<uint64_t>(input.step),
                                .lr = input.lr,
                                .mean_factor = static_cast<float>(1.0 / input.targets)});
  bool fits = true;
  for (int64_t i = 0; i < batch_.accumulation(); ++i) {
    fits = run_micro_step(input, i);
  }
  const bool statistics_fit = statistics_->reduce(data_);
  return fits && statistics_fit;
}

bool TrainingStep::run_micro_step(const Input& input, int64_t micro_step) {
  Context context{.stream = stream_,
                  .memory = memory_,
                  .tape = &tape_,
                  .numbers = record_->numbers(),
                  .training = true,
                  .gate = &store_->gradients,
                  .recompute = recompute_};
  const DeviceBatch batch = input.batch(micro_step);
  store_->gradients.begin_backward(micro_step + 1 == batch_.accumulation());
  const Variable losses = model_.loss(context, batch.input, batch.targets).losses;
  tape_.backward(context, losses, 1.0, &record_->numbers()->loss_gradient);
  record_->end_micro_step(stream_, losses.value());
  statistics_->end_micro_step();
  return store_->gradients.finish_backward();
}

// Norm and losses of all ranks: one small message.
void TrainingStep::sum_figures() {
  store_->gradients.squared_norm(record_->squared_norm(), record_->scratch());
  if (data_.size() > 1) {
    Stream& communication = data_.stream();
    communication.wait(stream_.record());
    data_.collectives().all_reduce(record_->figures(), Traffic::kControl);
    store_->values.exposure().wait(stream_, communication.record());
  }
}

}  // namespace tandem
