#include "src/train/trainer.h"

#include <cstdlib>

#include "comm/link_probe.h"
#include "layers/attention/attention.h"
#include "src/core/visible_text.h"
#include "src/device/ranks/agreement.h"
#include "src/estimate/memory_check.h"
#include "src/io/checkpoint/checkpoint.h"

namespace tandem {

Trainer::Trainer(const Config& config, World& world)
    : config_(config),
      machine_(config.run, config.dist, world),
      job_(machine_.mesh()->job()),
      data_(machine_.mesh()->data()),
      batch_(config.train.batch_plan(data_.size())),
      skip_batches_(StepRanges::parse(config.train.skip_batches).value()),
      directory_(config.run),
      stop_signal_(world.rank() == 0, std::getenv("OMPI_COMM_WORLD_RANK") != nullptr),
      stop_file_(world.rank() == 0 ? config.run.stop_file : "") {
  agree(job_, [&] {  // libraries and notices are those of a machine
    require_attention(config.kernels.attention, machine_.stream, config.train.precision);
    spot_watch_ =
        watch_spot(world.local_rank() == 0 ? config.run.watch_spot : WatchSpot::kOff, world.host());
  });
  open_data(world.local_rank() == 0);
  const std::string plans = on_root(job_, [&] {
    directory_.lock();
    return directory_.prepare(config_);
  });
  machine_.use_gemm_plans(plans, directory_.gemm_plans());
  directory_.require_shared(job_, world.host());
  build(world.local_size());
  resume();
  start_loader();
}

// One rank of each host verifies the content: each may have a copy of its own.
void Trainer::open_data(bool verifies) {
  agree(job_, [&] {
    dataset_ = open_dataset(directory_.find(config_.data.path));
    if (verifies) {
      verify_content(dataset_->info(), config_.data.verify);
    }
    model_ = make_model(config_.model, dataset_->info());
    dataset_->require_windows(Split::kTrain, config_.model->context());
    if (config_.train.eval_every > 0) {
      dataset_->require_windows(Split::kVal, config_.model->context());
    }
  });
  check_equal(job_, "dataset " + dataset_->info().path, dataset_->info().fingerprint(),
              ExitCode::kData);
}

void Trainer::build(int ranks_here) {
  TrainingStep::Options options = config_.training_step(data_.size());
  if (config_.dist.bucket_mb == 0) {
    options.store.bucket_bytes =
        plan_bucket_bytes(probe_link(data_, machine_.stream), parameter_count(*model_).trained * 4);
  }
  agree(job_, [&] {
    Config planned = config_;
    planned.dist.bucket_mb = static_cast<double>(options.store.bucket_bytes) / (1 << 20);
    check_memory(planned, dataset_->info(), data_, machine_.device(),
                 available_memory(machine_.device(), ranks_here));
  });
  training_ = std::make_unique<TrainingStep>(*model_, data_, machine_.stream, machine_.memory,
                                             machine_.staging, options);
  training_->store().values.initialize(static_cast<uint64_t>(config_.run.seed));
  window_ = std::make_unique<MetricsWindow>(machine_, *model_, training_->store().values.dtype(),
                                            config_.train.global_batch);
  upload_ = std::make_unique<Uploader>(machine_.stream, machine_.memory, machine_.staging,
                                       dataset_->info(), training_->store().values.dtype());
  views_ =
      std::make_unique<ModelViews>(config_, *dataset_, *model_, *training_, machine_, *upload_);
}

void Trainer::resume() {
  checkpointer_ = std::make_unique<Checkpointer>(config_, *dataset_, machine_, *model_, *training_);
  const Checkpointer::Start start = checkpointer_->resume();
  state_ = start.state;
  best_saved_ = state_.best_val_loss;
  is_done_ = !start.resumed_from.empty() && state_.step >= config_.train.steps;
  if (is_done_) {
    return;  // leaves all files as they are
  }
  agree(job_, [&] {
    if (job_.rank() == 0) {
      if (config_.model->reads_text()) {
        directory_.keep_tokenizer(dataset_->info().path);
      }
      discard_after(directory_.checkpoints(), state_.step);
      log_ = std::make_unique<RunLog>(config_, directory_, state_.step, dataset_->info(),
                                      machine_.hosts());
      log_->start(summary(), start.resumed_from, start.changes, start.weights_from);
      stop_signal_.set_last_checkpoint(last_checkpoint());
    }
  });
}

RunSummary Trainer::summary() const {
  return {.parameters = parameter_count(*model_),
          .flops_per_sample = model_->flops_per_sample(),
          .peak_flops = window_->peak_flops(),
          .batch = batch_,
          .machine = machine_.description(),
          .sharing = machine_.sharing(config_.dist),
          .buckets = training_->store().layout.buckets(),
          .gradient_bytes = training_->store().gradients.bytes(),
          .samples_per_epoch = dataset_->windows(Split::kTrain, config_.model->context()),
          .skipped_batches = state_.skipped_batches,
          .memory = machine_.memory_at_rest()};
}

void Trainer::start_loader() {
  loader_ = std::make_unique<Loader>(
      *dataset_, Loader::Options{.seed = static_cast<uint64_t>(config_.run.seed),
                                 .context = config_.model->context(),
                                 .global_batch = config_.train.global_batch,
                                 .first_sample = batch_.share() * data_.rank(),
                                 .share = batch_.share(),
                                 .micro_batch = batch_.micro_batch(),
                                 .first_step = state_.step,
                                 .prefetch = config_.data.prefetch,
                                 .augment = config_.data.augment,
                                 .skips = [steps = skip_batches_](int64_t step) {
                                   return steps.contains(step + 1);
                                 }});
}

ExitCode Trainer::run() {
  if (is_done_) {
    if (job_.rank() == 0) {
      say_nothing_to_do(config_, directory_, checkpointer_->path());
    }
    return ExitCode::kOk;
  }
  stop_signal_.begin_steps();
  window_->begin();
  static_cast<void>(training_->timeline().take(machine_.stream));
  while (state_.step < config_.train.steps) {
    StepPlan plan = plan_step();
    settle(1);
    if (plan.agreed.stop) {
      return finish(true);
    }
    if (plan.agreed.commit) {
      commit();
    }
    plan.skips ? skip() : step(std::move(plan.batch), plan.agreed.targets);
    if (state_.step == config_.train.steps && config_.checkpoint.at_end) {
      break;  // finish() validates and saves
    }
    if (config_.train.eval_every > 0 && state_.step % config_.train.eval_every == 0) {
      validate();
    }
    if (plan.agreed.save ||
        (config_.checkpoint.every_steps > 0 && state_.step % config_.checkpoint.every_steps == 0)) {
      save();
    }
  }
  return finish(false);
}

// While this rank waits for data and for the other ranks, the step before may still run.
Trainer::StepPlan Trainer::plan_step() {
  const int64_t number = state_.step + 1;
  StepPlan plan{.skips = skip_batches_.contains(number)};
  Votes votes{.stop = stop_signal_.requested() || stop_file_.requested(state_.step) ||
                      (spot_watch_ && spot_watch_->noticed()),
              .save = job_.rank() == 0 && checkpointer_->overdue(),
              .written = checkpointer_->is_written()};
  for (int64_t i = 0; i < batch_.accumulation() && !plan.skips; ++i) {
    plan.batch.push_back(during(Part::kData, [&] { return loader_->next(); }));
    votes.targets += static_cast<double>(plan.batch.back().target_count);
  }
  plan.agreed = during(Part::kCommunication, [&] { return decide(votes, *machine_.mesh()); });
  if (plan.agreed.empty && !plan.skips) {
    throw AgreedError(
        ExitCode::kData,
        str("step ", number, ": the global batch has no targets; every one is ignored"));
  }
  return plan;
}

// Enqueues a whole step.
void Trainer::step(std::vector<MicroBatch> batch, double targets) {
  Pending next{.step = state_.step + 1,
               .lr = lr_at(config_.schedule(), state_.step),
               .targets = targets,
               .batch = std::move(batch)};
  training_->run(input_of(next));
  next.timeline = training_->timeline().take(machine_.stream);
  next.record = training_->record().copy_to_host(machine_.stream);
  next.end = window_->mark();
  pending_.push_back(std::move(next));
  state_.val_loss.reset();
  ++state_.step;
}

TrainingStep::Input Trainer::input_of(const Pending& step) {
  return {.step = step.step - 1, .lr = step.lr, .targets = step.targets, .batch = [&](int64_t i) {
            return (*upload_)(step.batch[static_cast<size_t>(i)]);
          }};
}

// A step of train.skip_batches counts, but nothing is computed.
void Trainer::skip() {
  settle();
  leave_out(Part::kElsewhere, "", [&] {
    ++state_.step;
    ++state_.skipped_batches;
    state_.val_loss.reset();
    if (log_) {
      log_->skipped(state_.step);
    }
  });
}

// Waits for all steps but the newest `running` ones, and checks their results.
void Trainer::settle(size_t running) {
  while (pending_.size() > running) {
    const Pending done = std::move(pending_.front());
    pending_.pop_front();
    check(done);
  }
}

void Trainer::check(const Pending& done) {
  data_.wait(done.record.done);
  const StepState state = done.record.step_state();
  last_scale_ = state_.step_state(training_->options()).loss_scale;
  state_.take(state, training_->options());
  if (state.halted != 0 || state.exhausted != 0) {
    commit();  // what is being written is of an earlier step
  }
  const std::string saved = last_checkpoint();
  if (state.exhausted != 0) {
    throw AgreedError(
        ExitCode::kNumerical,
        str("step ", done.step, ": the gradients overflow fp16 even with a loss scale of ",
            training_->options().smallest_scale, "; last checkpoint: ", saved,
            "; lower optim.lr, or set train.precision = bf16"));
  }
  if (state.halted != 0) {
    const LostStep lost = training_->run_again(input_of(done), done.record);
    throw AgreedError(
        ExitCode::kNumerical,
        str("step ", done.step, ": the gradient is not finite: ", lost.text,
            "; last checkpoint: ", saved,
            lost.happens_again
                ? "; lower optim.lr, set optim.clip_norm, or go on with train.on_nonfinite = skip"
                : "; start again, and look for a machine that is at fault"));
  }
  window_->add(done.end, done.timeline.seconds());
  if (done.step % config_.train.log_every == 0 || done.step == 1 ||
      done.step == config_.train.steps) {
    log_step(done, state);
  }
  if (log_) {
    log_->step(done.step, done.record.loss() / done.targets);
  }
}

void Trainer::log_step(const Pending& done, const StepState& state) {
  StepMetrics metrics{.step = done.step,
                      .loss = done.record.loss() / done.targets,
                      .lr = done.lr,
                      .grad_norm = state.grad_norm,
                      .loss_scale = state.loss_scale,
                      .skipped = state.skipped};
  during(Part::kCommunication, [&] { window_->close(done.end, metrics); });
  if (log_) {
    log_->training(metrics);
  }
}

// Waits for all steps, and brings the values together: then others may read the model.
void Trainer::rest() {
  settle();
  training_->store().values.gather();
}

void Trainer::validate() {
  rest();
  leave_out(Part::kElsewhere, "validating", [&] {
    const MetricsWindow::Mark start = window_->mark();
    const Context context{.stream = machine_.stream,
                          .memory = machine_.memory,
                          .gate = &training_->store().gradients};
    const Evaluation result =
        evaluate(*model_, context, *dataset_, config_.model->context(), config_.train.eval_batch(),
                 config_.train.eval_batches, *upload_, data_.control());
    state_.val_loss = result.loss;
    if (log_) {
      log_->validation(state_.step, result);
    }
    views_->show(state_.step, last_scale_, log_.get());
    window_->leave_out_messages(start);
  });
  if (*state_.val_loss < state_.best_val_loss) {
    state_.best_val_loss = *state_.val_loss;
    save();
    if (checkpointer_->newest_step() == state_.step) {
      checkpointer_->keep_as_best();
    }
  }
}

// A step that is saved for several reasons (due, best, last) is written once; if that failed, only
// the end of the run tries again. If the save before is still being written, this waits for it.
void Trainer::save() {
  const bool was_tried = saving_.step == state_.step && !finishing_;
  if (checkpointer_->newest_step() == state_.step || was_tried) {
    return;
  }
  rest();
  commit();
  saving_ = state_;
  stall_s_ = 0;
  tolerate([&] { checkpointer_->begin(saving_); });
  if (!config_.checkpoint.async) {
    commit();
  }
}

// Ends the save that is being written, if any.
void Trainer::commit() {
  if (!checkpointer_->is_writing()) {
    return;
  }
  std::vector<double> write_s;
  tolerate([&] { write_s = checkpointer_->commit(); });
  if (!write_s.empty()) {
    failed_saves_ = 0;
    best_saved_ = saving_.best_val_loss;
    stop_signal_.set_last_checkpoint(checkpointer_->path());
    if (log_) {
      log_->saved(saving_.step,
                  {.stall_s = stall_s_, .write_s = write_s, .steps = state_.step - saving_.step});
    }
  }
}

// If saving fails because of the disk, training goes on, and the next checkpoint is tried when it
// is due. The third failure in a row, or one of the last save, ends the run.
void Trainer::tolerate(const std::function<void()>& saving) {
  constexpr int kMostFailures = 3;
  directory_.require_in_place();
  stall_s_ += leave_out(Part::kSaving, "saving", [&] {
    try {
      saving();
    } catch (const AgreedError& error) {
      directory_.require_in_place();
      const bool last = finishing_ && saving_.step == state_.step;
      if (error.code() != ExitCode::kData || last || ++failed_saves_ == kMostFailures) {
        throw;
      }
      if (log_) {
        complain(str("not saved: ", error.what(),
                     "; training goes on, last checkpoint: ", last_checkpoint()));
      }
      if (state_.best_val_loss == saving_.best_val_loss) {
        state_.best_val_loss = best_saved_;  // no checkpoint has the weights of a better one
      }
    }
  });
}

ExitCode Trainer::finish(bool stopped) {
  finishing_ = true;
  settle();
  const bool saves = stopped || config_.checkpoint.at_end;
  if (!stopped && saves && dataset_->windows(Split::kVal, config_.model->context()) > 0 &&
      checkpointer_->newest_step() != state_.step) {
    validate();
  }
  if (saves) {
    save();
  }
  commit();
  checkpointer_->end_removal();
  const std::vector<RankUse> use = window_->use(checkpointer_->copy_bytes());
  if (log_) {
    log_->finish(stopped, checkpointer_->path(),
                 {.step = state_.step,
                  .read_ahead = loader_->most_ready(),
                  .unused_parameters = training_->store().gradients.unused(),
                  .ranks = use});
  }
  return stopped ? ExitCode::kStopped : ExitCode::kOk;
}

}  // namespace tandem
