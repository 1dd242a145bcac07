#include "src/train/trainer.h"

#include <algorithm>
#include <utility>

#include "comm/agreement.h"
#include "comm/link_probe.h"

namespace tandem {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Trainer::Trainer(const Config& config, World& world)
    : config_(config),
      machine_(config, world),
      comm_(machine_.communicator()),
      directory_(config.run),
      memory_(machine_.memory),
      stream_(machine_.stream),
      stop_signal_(world.rank() == 0) {
  open_data();
  on_root(comm_, [&] {
    directory_.prepare(config_);
    return std::string();
  });
  build();
  resume();
  start_loader();
}

void Trainer::open_data() {
  agree(comm_, [&] {
    dataset_ = open_dataset(config_.data.path);
    model_ = make_model(config_.model, dataset_->info());
    dataset_->require_windows(Split::kTrain, config_.model.context);
    if (config_.train.eval_every > 0) {
      dataset_->require_windows(Split::kVal, config_.model.context);
    }
  });
  check_equal(comm_, "dataset " + config_.data.path, dataset_->info().fingerprint(),
              ExitCode::kData);
}

void Trainer::build() {
  Config planned = config_;
  if (config_.dist.bucket_mb == 0) {
    const int64_t bytes =
        plan_bucket_bytes(probe_link(comm_, stream_), parameter_count(*model_).trained * 4);
    planned.dist.bucket_mb = static_cast<double>(bytes) / (1 << 20);
  }
  training_ = std::make_unique<TrainingStep>(*model_, *machine_.ranks(), stream_, memory_,
                                             machine_.staging, planned);
  training_->store().initialize(static_cast<uint64_t>(config_.run.seed));
  state_ = first_state(training_->options());
  peak_flops_ = machine_.peak_flops(training_->store().dtype());
  upload_ = std::make_unique<Uploader>(stream_, memory_, machine_.staging, dataset_->info(),
                                       training_->store().dtype());
  schedule_ = {.kind = schedule_named(config_.optim.schedule),
               .lr = config_.optim.lr,
               .min_lr = config_.optim.min_lr,
               .warmup_steps = config_.optim.warmup_steps,
               .steps = config_.train.steps};
}

void Trainer::start_loader() {
  const int64_t share = config_.train.global_batch / comm_.size();
  loader_ = std::make_unique<Loader>(
      *dataset_, Loader::Options{.seed = static_cast<uint64_t>(config_.run.seed),
                                 .context = config_.model.context,
                                 .global_batch = config_.train.global_batch,
                                 .first_sample = share * comm_.rank(),
                                 .share = share,
                                 .micro_batch = micro_batch(),
                                 .first_step = step_,
                                 .prefetch = config_.data.prefetch,
                                 .augment = config_.data.augment});
}

ExitCode Trainer::run() {
  wire_ = wire_at(mark_wire());
  window_start_ = last_save_time_ = Clock::now();
  StepPlan next = step_ < config_.train.steps ? plan_step(step_ + 1) : StepPlan{};
  while (step_ < config_.train.steps) {
    if (next.stop) {
      return finish(true);
    }
    const bool save_due = next.save;
    next = step(next);
    const bool last = step_ == config_.train.steps;
    if (config_.train.eval_every > 0 && step_ % config_.train.eval_every == 0 && !last) {
      validate();
    }
    if (!last && (save_due || (config_.checkpoint.every_steps > 0 &&
                               step_ % config_.checkpoint.every_steps == 0))) {
      save();
    }
    if (last_saved_ == step_) {
      next.save = false;  // it was planned before this checkpoint
    }
  }
  return finish(false);
}

Trainer::StepPlan Trainer::plan_step(int64_t number) {
  StepPlan plan;
  double targets = 0;
  for (int64_t i = 0; i < accumulation(); ++i) {
    plan.batch.push_back(loader_->next());
    targets += static_cast<double>(plan.batch.back().target_count);
  }
  const double minutes = config_.checkpoint.every_minutes;
  const bool due =
      comm_.rank() == 0 && minutes > 0 && seconds_since(last_save_time_) >= 60 * minutes;
  const std::vector<double> sums = comm_.sum(
      std::vector<double>{targets, stop_signal_.requested() ? 1.0 : 0.0, due ? 1.0 : 0.0});
  if (sums[0] == 0) {
    throw AgreedError(
        ExitCode::kData,
        str("step ", number, ": the global batch has no targets; every one is ignored"));
  }
  plan.targets = sums[0];
  plan.stop = sums[1] > 0;
  plan.save = sums[2] > 0;
  return plan;
}

// Enqueues a whole step, then reads the figures of the one before. Returns the plan of the next:
// agreed on before the updated weights are on their way, because on the CPU messages wait for each
// other.
Trainer::StepPlan Trainer::step(const StepPlan& plan) {
  Pending next{.step = step_ + 1, .lr = lr_at(schedule_, step_), .targets = plan.targets};
  training_->run({.step = step_, .lr = next.lr, .targets = plan.targets, .batch = [&](int64_t i) {
                    return (*upload_)(plan.batch[static_cast<size_t>(i)]);
                  }});
  StepPlan after = step_ + 1 < config_.train.steps ? plan_step(step_ + 2) : StepPlan{};
  training_->store().gather();
  next.exposure = training_->take_exposure();
  next.record = training_->record().copy_to_host(stream_);
  next.wire = mark_wire();
  next.enqueued = Clock::now();
  settle();
  pending_ = std::move(next);
  val_loss_.reset();
  ++step_;
  return after;
}

Trainer::WireMark Trainer::mark_wire() {
  WireMark mark{.count = std::make_shared<WireCount>(), .there = {}};
  const auto read = [ranks = machine_.ranks(), count = mark.count] { *count = ranks->wire(); };
  if (comm_.stream().device() == Device::kCpu) {
    comm_.stream().submit(read);
    mark.there = comm_.stream().record();
  } else {
    read();  // NCCL's are counted when they are enqueued
  }
  return mark;
}

WireCount Trainer::wire_at(const WireMark& mark) {
  comm_.wait(mark.there);
  return *mark.count;
}

// Waits for the step that is under way, if any, and looks at what it did.
void Trainer::settle() {
  if (!pending_) {
    return;
  }
  const Pending done = *std::exchange(pending_, std::nullopt);
  comm_.wait(done.record.done);
  state_ = done.record.step_state();
  const std::string saved = last_checkpoint_.empty() ? "none" : last_checkpoint_;
  if (state_.exhausted != 0) {
    throw AgreedError(
        ExitCode::kNumerical,
        str("step ", done.step, ": the gradients overflow fp16 even with a loss scale of ",
            training_->options().smallest_scale, "; last checkpoint: ", saved,
            "; lower optim.lr, or set train.precision = bf16"));
  }
  if (state_.apply == 0 && !training_->options().dynamic_scale &&
      config_.train.on_nonfinite == "stop") {
    throw AgreedError(
        ExitCode::kNumerical,
        str("step ", done.step, ": the gradient is not finite; last checkpoint: ", saved,
            "; lower optim.lr, set optim.clip_norm, or go on with train.on_nonfinite = skip"));
  }
  window_.grad_norm = state_.grad_norm;
  window_.lr = done.lr;
  const WireCount wire = wire_at(done.wire);
  window_.wire = wire - std::exchange(wire_, wire);
  window_.exposed_comm_s += done.exposure.seconds();
  ++window_.steps;
  if (done.step % config_.train.log_every == 0 || done.step == 1 ||
      done.step == config_.train.steps) {
    log_step(done);
  }
  if (log_) {
    log_->step(done.step);
  }
}

// What every rank used; collective.
std::vector<RankUse> Trainer::gather_use(const WireCount& wire) {
  RankUse own{.wire = wire, .peak_bytes = memory_.total().peak_bytes};
  for (size_t i = 0; i < own.memory_peak.size(); ++i) {
    own.memory_peak[i] = memory_.use(static_cast<MemoryClass>(i)).peak_bytes;
  }
  std::vector<RankUse> all;
  for (const std::string& text : comm_.all_gather(own.text())) {
    all.push_back(RankUse::from_text(text));
  }
  return all;
}

// Gathers what the ranks measured, and writes it down.
void Trainer::log_step(const Pending& done) {
  const std::vector<RankUse> use = gather_use(window_.wire);
  std::vector<double> exposed(use.size(), 0.0);
  exposed[static_cast<size_t>(comm_.rank())] = window_.exposed_comm_s;
  window_.exposed_comm_s = std::ranges::max(comm_.sum(exposed));
  window_.step = done.step;
  window_.loss = done.record.loss() / done.targets;
  window_.loss_scale = state_.loss_scale;
  window_.skipped = state_.skipped;
  window_.wire = use[busiest_rank(use)].wire;
  window_.memory_peak = use[largest_rank(use)].memory_peak;
  window_.peak_bytes = use[largest_rank(use)].peak_bytes;
  // A CPU has done a step when it is enqueued; of a GPU this is the time to see that it has.
  const Clock::time_point end = stream_.device() == Device::kCpu ? done.enqueued : Clock::now();
  window_.seconds = std::chrono::duration<double>(end - window_start_).count();
  window_.samples = window_.steps * config_.train.global_batch;
  if (peak_flops_ > 0) {
    window_.mfu = model_->flops_per_sample() * static_cast<double>(window_.samples) /
                  window_.seconds / (peak_flops_ * static_cast<double>(comm_.size()));
  }
  if (log_) {
    log_->training(window_);
  }
  window_ = {};
  window_start_ = end;
}

void Trainer::validate() {
  settle();
  const Clock::time_point start = Clock::now();
  const Context context{.stream = stream_, .memory = memory_, .gate = &training_->store()};
  const Evaluation result =
      evaluate(*model_, context, *dataset_, config_.model.context, config_.train.eval_batch(),
               config_.train.eval_batches, *upload_, comm_);
  // What validation sent and waited for belongs to no step.
  wire_ = wire_at(mark_wire());
  static_cast<void>(training_->take_exposure());
  val_loss_ = result.loss;
  if (log_) {
    log_->validation(step_, result);
  }
  window_start_ += Clock::now() - start;  // save() below accounts for itself
  if (result.loss < best_val_loss_) {
    best_val_loss_ = result.loss;
    save();
    on_root(comm_, [&] {
      keep_as_best(directory_.checkpoints(), last_checkpoint_);
      return std::string();
    });
  }
}

ExitCode Trainer::finish(bool stopped) {
  settle();
  if (!stopped && dataset_->windows(Split::kVal, config_.model.context) > 0 &&
      last_saved_ != step_) {
    validate();
  }
  save();
  const std::vector<RankUse> use = gather_use(wire_at(mark_wire()));
  if (log_) {
    log_->finish(stopped, last_checkpoint_,
                 {.step = step_,
                  .read_ahead = loader_->most_ready(),
                  .unused_parameters = training_->store().unused(),
                  .ranks = use});
  }
  return stopped ? ExitCode::kStopped : ExitCode::kOk;
}

}  // namespace tandem
