#include "src/train/trainer.h"

#include <array>

#include "layers/attention/attention.h"
#include "src/device/ranks/agreement.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/trace/flight_log.h"

namespace tandem {

Trainer::Trainer(const Config& config, World& world)
    : world_(world),
      config_(config),
      machine_(config.run, config.dist, world),
      skip_batches_(StepRanges::parse(config.train.skip_batches).value()),
      directory_(config.run),
      stop_(world.rank() == 0, config.run.stop_file) {
  agree(job(), [&] {  // libraries and notices are those of a machine
    require_attention(config.kernels.attention, machine_.stream, config.train.precision);
    if (config.train.graphs == Graphs::kOn && machine_.device() == Device::kCpu) {
      fail(ExitCode::kConfig, "train.graphs = on is for a GPU; use auto or off");
    }
    stop_.watch(world.local_rank() == 0 ? config.run.watch_spot : WatchSpot::kOff, world.host());
  });
  open_data(world.local_rank() == 0);
  on_root(job(), [&] {
    directory_.lock();
    directory_.prepare(config_, machine_.device(), dataset_->info().vocab_size);
    return std::string();
  });
  // Rank 0 knows what auto means.
  config_.dist.bucket_mb = job().sum(std::array{job().rank() == 0 ? config_.dist.bucket_mb : 0})[0];
  directory_.require_shared(job(), world.host());
  const AvailableMemory available = available_memory(machine_.device(), world.local_size());
  const OpenChoices choices = build(available);
  resume(available, choices);
  start_loader();
}

void Trainer::check_fit(const AvailableMemory& available) {
  agree(job(), [&] {
    check_memory(config_, dataset_->info(), job().rank(), machine_.node_of_rank(),
                 machine_.device(), available);
  });
}

// One rank of each host verifies the content: each may have a copy of its own.
void Trainer::open_data(bool verifies) {
  agree(job(), [&] {
    dataset_ = open_dataset(directory_.find(config_.data.path), config_.windows());
    if (verifies) {
      verify_content(dataset_->info(), config_.data.verify);
    }
    model_ = make_model(config_.model, dataset_->info(), machine_.mesh()->cut());
    dataset_->require_windows(Split::kTrain, config_.model->context());
    if (config_.train.eval_every > 0 || !config_.train.eval_choices.empty()) {
      dataset_->require_windows(Split::kVal, config_.model->context());
    }
  });
  check_equal(job(), "dataset " + dataset_->info().path, dataset_->info().fingerprint(),
              ExitCode::kData);
  questions_ = std::make_unique<RunQuestions>(config_, directory_, dataset_->info(), job());
}

OpenChoices Trainer::build(const AvailableMemory& available) {
  const ChoiceRecorder recorder;
  check_fit(available);
  OpenChoices choices = recorder.noted();
  training_ = std::make_unique<TrainingStep>(
      *model_, machine_.mesh()->model(), machine_.stream, machine_.memory, machine_.staging,
      config_.training_step(machine_.device(), job().size()));
  training_->store().values.initialize(static_cast<uint64_t>(config_.run.seed));
  islands_ = std::make_unique<Islands>(*training_, machine_);
  upload_ = std::make_unique<Uploader>(machine_.stream, machine_.memory, machine_.staging,
                                       dataset_->info(), training_->store().values.dtype());
  steps_ = std::make_unique<RunningSteps>(config_, world_, machine_, *model_, *training_, *upload_,
                                          *islands_, directory_, state_);
  views_ =
      std::make_unique<ModelViews>(config_, *dataset_, *model_, *training_, machine_, *upload_);
  return choices;
}

void Trainer::resume(const AvailableMemory& available, const OpenChoices& choices) {
  saver_ = std::make_unique<Saver>(
      config_, *dataset_, machine_, *model_, *training_, directory_, stop_.signal, state_,
      [this](const auto& work) { return steps_->leave_out(Phase::kSaving, "saving", work); });
  const Checkpointer::Start start = saver_->resume();
  islands_->take_as_settled(state_.step);
  if (is_done()) {
    return;  // leaves all files as they are
  }
  const std::string begun = on_root(job(), [] { return std::to_string(flight_now()); });
  flight_log().keep_in(directory_.flight(), std::stoll(begun), job().rank(), job().size(),
                       world_.host());
  const Chosen chosen =
      choose_for_run(config_, directory_, machine_, choices, [&] { check_fit(available); });
  agree(job(), [&] {
    if (job().rank() == 0) {
      directory_.keep_settings(config_);
      directory_.keep_vocabulary(dataset_->info());
      discard_after(directory_.checkpoints(), state_.step);
      log_ =
          std::make_unique<RunLog>(config_, directory_, state_, dataset_->info(), machine_.hosts());
      log_->start(summary(chosen), start.resumed_from, start.changes, start.weights_from);
      saver_->log_to(*log_);
      steps_->log_to(*log_);
    }
  });
}

RunSummary Trainer::summary(const Chosen& chosen) const {
  return {.parameters = parameter_count(*model_),
          .flops_per_sample = model_->flops_per_sample(),
          .peak_flops = steps_->peak_flops(),
          .batch = training_->batch(),
          .machine = machine_.description(),
          .sharing = machine_.sharing(config_.dist),
          .buckets = training_->store().layout.buckets(),
          .gradient_bytes = training_->store().gradients.bytes(),
          .samples_per_epoch = dataset_->windows(Split::kTrain, config_.model->context()),
          .packing = dataset_->packing_costs(),
          .skipped_batches = state_.skipped_batches,
          .graph = config_.graph_text(machine_.device(), job().size()),
          .memory = machine_.memory_at_rest(config_.train.offload),
          .measured_choices = chosen.measured,
          .measuring_s = chosen.seconds};
}

void Trainer::start_loader() {
  const BatchPlan& batch = training_->batch();
  const Mesh& mesh = *machine_.mesh();
  loader_ = std::make_unique<Loader>(
      *dataset_,
      Loader::Options{
          .seed = static_cast<uint64_t>(config_.run.seed),
          .context = config_.model->context(),
          .global_batch = config_.train.global_batch,
          .first_sample = batch.first_sample(mesh.index(Axis::kIslands), mesh.data().rank()),
          .share = batch.share(),
          .micro_batch = batch.micro_batch(),
          .first_step = state_.step,
          .prefetch = config_.data.prefetch,
          .augment = config_.data.augment,
          .skips = [steps = skip_batches_](int64_t step) { return steps.contains(step + 1); }});
}

// A run may have been killed between its last save and its last validation.
bool Trainer::is_done() const {
  const Checkpointer& checkpoints = saver_->checkpoints();
  const int64_t newest = checkpoints.newest_step();
  const bool may_validate = newest == config_.train.steps && checkpoints.goes_on();
  return newest >= config_.train.steps && !(may_validate && lacks_validation());
}

// checkpoint.at_end saves the last step, and then its loss.
bool Trainer::lacks_validation() const {
  return config_.checkpoint.at_end && !state_.val_loss &&
         dataset_->windows(Split::kVal, config_.model->context()) > 0;
}

ExitCode Trainer::run() {
  if (is_done()) {
    if (job().rank() == 0) {
      say_nothing_to_do(config_, directory_, saver_->last_checkpoint());
    }
    return ExitCode::kOk;
  }
  stop_.signal.begin_steps();
  steps_->begin();
  if (state_.step > 0 && saver_->checkpoints().goes_on() && validates() && !state_.val_loss) {
    validate();  // the run was stopped or killed in that
  }
  while (state_.step < config_.train.steps) {
    if (steps_->trace_is_due()) {
      finish_steps();
      steps_->turn_trace();
    }
    StepPlan plan = plan_step();
    finish_steps(1);
    if (plan.agreed.lost) {
      end_lost();
    }
    if (plan.agreed.stop) {
      return finish(true);
    }
    if (plan.agreed.commit) {
      saver_->commit();
    }
    if (plan.agreed.save) {
      save();
    }
    if (plan.skips) {
      skip();
    } else {
      steps_->enqueue(std::move(plan.batch), plan.agreed.targets, [this] { return settles(); });
    }
    if (is_last() && config_.checkpoint.at_end) {
      break;  // finish() saves and validates
    }
    if (validates()) {
      validate();
    }
    if (saver_->is_due()) {
      save();
    }
  }
  return finish(false);
}

// While this rank waits for data and for the other ranks, the step before may still run.
Trainer::StepPlan Trainer::plan_step() {
  const int64_t number = state_.step + 1;
  const bool all_meet = islands_->all_meet_after(state_.step);
  StepPlan plan{.skips = skip_batches_.contains(number)};
  Votes votes{.stop = stop_.any(state_.step),
              .save = job().rank() == 0 && saver_->checkpoints().overdue(),
              .written = saver_->checkpoints().is_written(),
              .lost = steps_->lost().found(),
              .calls = all_meet ? flight_log().take_calls() : 0};
  for (int64_t i = 0; i < training_->batch().accumulation() && !plan.skips; ++i) {
    plan.batch.push_back(steps_->during_wait(Phase::kData, [&] { return loader_->next(); }));
    votes.targets += static_cast<double>(plan.batch.back().target_count);
  }
  plan.agreed = steps_->during_wait(Phase::kCommunication, [&] {
    const Mesh& mesh = *machine_.mesh();
    return all_meet ? decide(votes, mesh) : decide_apart(votes.targets, mesh);
  });
  require_good(plan.agreed, !plan.skips, number, world_);
  return plan;
}

// A step of train.skip_batches counts, but nothing is computed.
void Trainer::skip() {
  finish_steps();
  steps_->leave_out(Phase::kElsewhere, "", [&] {
    ++state_.step;
    ++state_.skipped_batches;
    state_.val_loss.reset();
    islands_->end_step(state_.step, settles(), [] {});
    if (log_) {
      log_->skipped(state_.step);
    }
  });
}

// As RunningSteps::finish(). A run of islands that has lost a step ends where they meet.
void Trainer::finish_steps(size_t running) {
  steps_->finish(running);
  if (steps_->lost().found() && islands_->number() < 0) {
    end_lost();
  }
}

void Trainer::end_lost() {
  saver_->finish();  // what is being written is of an earlier step
  steps_->lost().end(job(), saver_->last_checkpoint());
}

// Waits for all steps, and brings islands and values together: then others may read the model.
void Trainer::rest() {
  finish_steps();
  if (islands_->number() >= 0 && job().sum(std::array{steps_->lost().found() ? 1.0 : 0.0})[0] > 0) {
    end_lost();
  }
  islands_->settle(state_);
  training_->settle();
}

// False if the run was asked to stop meanwhile; then there is no result.
bool Trainer::validate() {
  bool stopped = false;
  const auto stops = [&] {
    stopped = stopped || job().sum(std::array{stop_.any(state_.step) ? 1.0 : 0.0})[0] > 0;
    return stopped;
  };
  rest();
  steps_->leave_out(Phase::kElsewhere, "validating", [&] {
    const Context context = training_->forward_context(machine_.scratch);
    Evaluation result =
        evaluate(*model_, context, *dataset_, config_.model->context(), config_.eval_batch(),
                 config_.train.eval_batches, *upload_, machine_.mesh()->model(), stops);
    if (!stopped) {
      result.choices_acc = questions_->acc(*model_, context, machine_, stops);
    }
    if (stopped) {
      return;
    }
    state_.val_loss = result.loss;
    if (log_) {
      log_->validation(state_.step, result);
    }
    views_->show(state_.step, steps_->loss_scale(), log_.get());
  });
  if (!stopped) {
    saver_->after_validation();
  }
  return !stopped;
}

void Trainer::save() {
  rest();
  saver_->save();
}

ExitCode Trainer::finish(bool stopped) {
  finish_steps();
  steps_->finish_trace();
  saver_->expect_end();
  if (stopped || config_.checkpoint.at_end) {
    save();
  }
  if (!stopped && lacks_validation()) {
    saver_->commit();  // whatever becomes of the validation, the run is not lost
    stopped = !validate();
  }
  saver_->finish();
  const std::vector<RankUse> use = steps_->use(saver_->checkpoints().copy_bytes());
  if (log_) {
    log_->finish(stopped, saver_->checkpoints().path(),
                 {.step = state_.step,
                  .read_ahead = loader_->most_ready(),
                  .unused_parameters = training_->store().gradients.unused(),
                  .ranks = use});
  }
  return stopped ? ExitCode::kStopped : ExitCode::kOk;
}

}  // namespace tandem
