#include "src/step/training_step.h"

#include "src/device/profiler_range.h"

namespace tandem {

TrainingStep::TrainingStep(Model& model, const ModelGroups& groups, Stream& stream, Memory& memory,
                           Memory& staging, const Options& options)
    : model_(model),
      groups_(groups),
      stream_(stream),
      memory_(memory),
      scratch_(memory.scratch()),
      options_(options),
      verdict_{.clip_norm = options.clip_norm,
               .halts = options.halts,
               .dynamic_scale = options.store.dtype == DType::kFp16},
      tape_([this](Context& context, Parameter& parameter) {
        if (check_) {
          check_->see_gradient(parameter);
        }
        store_->gradients.on_final(context, parameter);
      }) {
  const BatchPlan& batch = options_.batch;
  options_.store.exact_micro_batches = options.exact ? batch.micro_batches() : 0;
  store_ = std::make_unique<ParamStore>(parameters_by_block(model), groups, stream, memory,
                                        options_.store);
  statistics_ =
      std::make_unique<BatchStatistics>(model, stream, memory, options_.store.exact_micro_batches);
  record_ = std::make_unique<StepRecord>(
      stream, memory, staging,
      StepRecord::MicroBatches{.all = batch.micro_batches(),
                               .first = batch.accumulation() * groups.data.rank(),
                               .samples = batch.micro_batch()},
      verdict_);
  optimizer_ = options.optimizer(store_->shards.all(), memory);
}

void TrainingStep::run(const Input& input) {
  store_->values.gather();
  for (int attempt = 1; !run_micro_steps(input); ++attempt) {
    require(attempt == 1, [&] {
      return str("step ", input.step + 1, ": exact sums do not fit exponents of the same step");
    });
  }
  sum_figures();
  timeline().during(stream_, Phase::kOptimizer, [&] {
    const ProfilerRange range("optimizer");
    record_->decide(stream_);
    statistics_->update(record_->state(), options_.batch.micro_batches());
    optimizer_->step(stream_, store_->shards.all(),
                     {.numbers = record_->numbers(), .state = record_->state()});
  });
  store_->values.outdate();
}

LostStep TrainingStep::run_again(const Input& input, const StepRecord::Copy& first) {
  require(first.step_state().halted != 0, "TrainingStep::run_again: training is not halted");
  check_.emplace(model_, store_->gradients, groups_.stage, stream_, memory_);
  run(input);  // updates nothing, because training is halted
  const std::optional<FiniteCheck::Place> place = check_->place();
  check_.reset();
  const StepRecord::Copy second = record_->copy_to_host(stream_);
  groups_.stage.wait(second.done);
  return agree_on_lost_step(groups_.stage.control(), place, first, second,
                            options_.batch.accumulation());
}

// False when exact sums did not fit: all ranks run the micro-steps again.
bool TrainingStep::run_micro_steps(const Input& input) {
  store_->gradients.begin_step();
  statistics_->begin_step();
  record_->send({.seed = options_.seed,
                 .step = static_cast<uint64_t>(input.step),
                 .lr = input.lr,
                 .mean_factor = static_cast<float>(1.0 / input.targets)});
  record_->begin_step(stream_);
  bool fits = true;
  for (int64_t i = 0; i < micro_steps(); ++i) {
    fits = run_micro_step(input, i);
  }
  const bool statistics_fit = statistics_->reduce(groups_.data, timeline());
  return fits && statistics_fit;
}

bool TrainingStep::run_micro_step(const Input& input, int64_t micro_step) {
  const ProfilerRange range(str("micro-step ", micro_step + 1));
  Context context{.stream = stream_,
                  .memory = scratch_,
                  .tape = &tape_,
                  .numbers = record_->numbers(),
                  .loss_gradient = &record_->numbers()->loss_gradient,
                  .training = true,
                  .gate = check_ ? static_cast<Gate*>(&*check_) : &store_->gradients,
                  .recompute = options_.recompute,
                  .attention = options_.attention,
                  .tensor = groups_.tensor ? &groups_.tensor->collectives() : nullptr};
  if (check_) {
    check_->begin_micro_step(micro_step);
  }
  const DeviceBatch batch = input.batch(micro_step);
  store_->gradients.begin_backward(micro_step + 1 == micro_steps());
  const Variable losses = model_.loss(context, batch.input, batch.targets).losses;
  if (check_) {
    check_->see_loss(losses.value());
  }
  tape_.backward(context);
  record_->end_micro_step(stream_, losses.value());
  statistics_->end_micro_step();
  return store_->gradients.finish_backward();
}

// Sums norm and losses over ranks: one small message.
void TrainingStep::sum_figures() {
  store_->gradients.squared_norm(record_->squared_norm(), record_->scratch());
  if (Group& stage = groups_.stage; stage.size() > 1) {
    Stream& communication = stage.stream();
    communication.wait(stream_.record());
    stage.collectives().all_reduce(record_->figures(), Traffic::kControl);
    timeline().wait(stream_, communication.record());
  }
}

}  // namespace tandem
