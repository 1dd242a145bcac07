#include "src/step/training_step.h"

#include <algorithm>
#include <utility>

#include "src/device/profiler_range.h"
#include "src/device/ranks/agreement.h"
#include "src/trace/recorder.h"

namespace tandem {

TrainingStep::TrainingStep(Model& model, const ModelGroups& groups, Stream& stream, Memory& memory,
                           Memory& staging, const Options& options)
    : model_(model),
      groups_(groups),
      stream_(stream),
      memory_(memory),
      staging_(staging),
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
  check_equal(groups.stage.control(), "what decides whether steps are CUDA graphs",
              options.graph ? "they are" : "they are not");
  const BatchPlan& batch = options_.batch;
  options_.store.exact_micro_batches = options.exact ? batch.micro_batches() : 0;
  store_ = std::make_unique<ParamStore>(parameters_by_block(model), groups, stream, memory,
                                        options_.store, &staging);
  statistics_ =
      std::make_unique<BatchStatistics>(model, stream, memory, options_.store.exact_micro_batches);
  record_ = std::make_unique<StepRecord>(
      stream, memory, staging,
      StepRecord::MicroBatches{
          .all = batch.micro_batches(),
          .first = batch.accumulation() * groups.data.rank(),
          .samples = batch.micro_batch(),
          .first_sample = batch.first_sample(groups.island(), groups.data.rank())},
      verdict_);
  if (options_.store.matrices) {
    matrices_.emplace(store_->layout, store_->gradients, timeline(), memory);
  }
  optimizer_ = options.optimizer(store_->shards.all(),
                                 {memory, options_.store.offload_run > 0 ? staging : memory,
                                  matrices_ ? &*matrices_ : nullptr});
  if (options_.store.offload_run > 0) {
    require(!options_.graph && !groups.islands,
            "TrainingStep: an offloaded update is neither in a graph nor on islands");
    offloaded_.emplace(*store_, *optimizer_, stream, memory);
  }
  if (options.parks_inputs && options.recompute) {
    require(!options_.graph, "TrainingStep: inputs that wait on the host are not in a graph");
    parked_.emplace(stream, scratch_, staging,
                    [this](const Event& event) { timeline().wait(stream_, event, Phase::kCopy); });
  }
  if (groups.islands) {
    make_islands();
  }
  if (options.graph) {
    require(Memory::keeps_gpu_blocks(), "TrainingStep: a graph needs memory that keeps its blocks");
  }
}

void TrainingStep::make_islands() {
  require(!options_.graph, "TrainingStep: what islands exchange is not in a graph");
  auto outer = std::make_unique<OuterOptimizer>(std::move(optimizer_), options_.islands.outer,
                                                store_->shards.all(), memory_);
  islands_.emplace(
      IslandSync::Setting{groups_, *store_, *outer, *statistics_, stream_, memory_, staging_},
      options_.islands, options_.store.wire_dtype, options_.seed);
  optimizer_ = std::move(outer);
}

StepRecord::Copy TrainingStep::run(const Input& input) {
  if (islands_) {
    islands_->begin();
  }
  send(input);
  if (options_.graph && has_run_ && !check_ && !recorder().is_on() && !stream_.meter()) {
    return launch(input);
  }
  options_.graph && !has_run_ ? rehearse(input) : enqueue(input);
  has_run_ = true;
  return record_->copy_to_host();
}

// Brings the numbers of a step to the device.
void TrainingStep::send(const Input& input) {
  record_->send({.seed = options_.seed,
                 .step = static_cast<uint64_t>(input.step),
                 .lr = input.lr,
                 .mean_factor = static_cast<float>(1.0 / input.targets)});
}

// Enqueues everything else.
void TrainingStep::enqueue(const Input& input) {
  store_->values.gather();
  for (int attempt = 1; !run_micro_steps(input); ++attempt) {
    require(attempt == 1, "step ", input.step + 1,
            ": exact sums do not fit exponents of the same step");
    send(input);
  }
  sum_figures();
  timeline().during(stream_, Phase::kOptimizer, [&] {
    const ProfilerRange range("optimizer");
    record_->decide(stream_);
    statistics_->update(record_->state(), options_.batch.micro_batches());
    update();
  });
}

void TrainingStep::update() {
  const StepInputs inputs{.numbers = record_->numbers(), .state = record_->state()};
  if (offloaded_) {
    optimizer_->prepare(stream_, inputs);
    store_->values.outdate([this](int64_t bucket) { return offloaded_->update(bucket); });
  } else {
    optimizer_->step(stream_, store_->shards.all(), inputs);
    store_->values.outdate();
  }
}

void TrainingStep::settle() {
  store_->values.gather();
  if (offloaded_) {
    timeline().wait(stream_, offloaded_->rest(), Phase::kCopy);
  }
}

// The first step does what a graph will do, which gathers values even if they are whole, and so
// tells how many marks the graph has.
void TrainingStep::rehearse(const Input& input) {
  store_->values.outdate();
  const int64_t before = std::ssize(timeline().marks());
  enqueue(input);
  const int64_t marks = std::ssize(timeline().marks()) - before + 2;  // 2 stand around it
  stamps_ = Tensor::empty(memory_, {marks}, DType::kI64, MemoryClass::kWorkspace);
}

StepRecord::Copy TrainingStep::launch(const Input& input) {
  const std::string held = scratch_.held();
  require(held.empty(), "TrainingStep: between steps there is ", held);
  if (!captured_) {
    capture(input);
  }
  require(input.memory && input.memory.raw() == captured_->input.raw() &&
              input.memory.bytes() == captured_->input.bytes(),
          "TrainingStep: the input does not stand where the graph reads it");
  Collectives& collectives = groups_.stage.collectives();
  collectives.before_graph(stream_);
  captured_->graph.launch(stream_);
  store_->values.outdate();
  StepRecord::Copy record = record_->copy_to_host(stamps_);
  collectives.add_graph(record.done);
  timeline().append(captured_->timeline, record.stamps);
  return record;
}

void TrainingStep::capture(const Input& input) {
  scratch_.keep_blocks();
  store_->values.outdate();
  Timeline outside = std::exchange(timeline(), Timeline(stamps_));
  Graph graph(stream_, [&] {
    timeline().enter(stream_, Phase::kCompute);
    enqueue(input);
    timeline().enter(stream_, Phase::kCompute);
  });
  Timeline inside = std::exchange(timeline(), std::move(outside));
  captured_.emplace(Captured{std::move(graph), std::move(inside), input.memory});
}

LostStep TrainingStep::run_again(const Input& input, const StepRecord::Copy& first) {
  require(first.step_state().halted != 0, "TrainingStep::run_again: training is not halted");
  check_.emplace(model_, store_->gradients, groups_.stage, stream_, memory_);
  const StepRecord::Copy second = run(input);  // updates nothing, because training is halted
  const std::optional<FiniteCheck::Place> place = check_->place();
  check_.reset();
  groups_.stage.wait(second.done);
  return agree_on_lost_step(groups_.stage.control(), place, first, second,
                            options_.batch.accumulation());
}

// False when exact sums did not fit: all ranks run the micro-steps again.
bool TrainingStep::run_micro_steps(const Input& input) {
  store_->gradients.begin_step();
  statistics_->begin_step();
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
                  .parked = parked_ ? &*parked_ : nullptr,
                  .attention = options_.attention,
                  .tensor = groups_.exchange()};
  if (check_) {
    check_->begin_micro_step(micro_step);
  }
  const DeviceBatch batch = input.batch(micro_step);
  context.positions = batch.positions;
  context.document_length = options_.document_length;
  store_->gradients.begin_backward(micro_step + 1 == micro_steps(), context.numbers);
  const Variable losses = model_.loss(context, batch.input, batch.targets).losses;
  if (offloaded_) {
    store_->values.await_all();  // then all updates have read the gradients of the step before
    if (micro_step + 1 == micro_steps()) {
      offloaded_->prefetch();
    }
  }
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
