#include "src/train/trainer.h"

#include <algorithm>
#include <utility>

#include "comm/agreement.h"
#include "layers/cross_entropy.h"
#include "layers/running_statistics.h"
#include "optim/adamw.h"
#include "optim/sgd.h"
#include "src/core/profiler_range.h"

namespace tandem {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::unique_ptr<Optimizer> make_optimizer(const OptimConfig& optim, std::span<const Shard> shards,
                                          Memory& memory) {
  if (optim.kind == "adamw") {
    return make_adamw({.beta1 = optim.beta1,
                       .beta2 = optim.beta2,
                       .eps = optim.eps,
                       .weight_decay = optim.weight_decay},
                      shards, memory);
  }
  return make_sgd(
      {.momentum = optim.momentum, .nesterov = optim.nesterov, .weight_decay = optim.weight_decay},
      shards, memory);
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
    model_ = make_model(config_.model, dataset_->info(), config_.train.recompute == "block");
    dataset_->require_windows(Split::kTrain, config_.model.context);
    if (config_.train.eval_every > 0) {
      dataset_->require_windows(Split::kVal, config_.model.context);
    }
  });
  check_equal(comm_, "dataset " + config_.data.path, dataset_->info().fingerprint(),
              ExitCode::kData);
}

void Trainer::build() {
  store_ = std::make_unique<ParamStore>(
      model_->blocks(), comm_, memory_,
      ParamStore::Options{.bucket_bytes = static_cast<int64_t>(config_.dist.bucket_mb * (1 << 20)),
                          .overlap = config_.dist.overlap,
                          .zero = static_cast<int>(config_.dist.zero),
                          .unused_is_error = config_.dist.unused == "error",
                          .dtype = dtype_named(config_.train.precision),
                          .wire_dtype = dtype_named(config_.dist.wire_dtype)});
  store_->initialize(stream_, static_cast<uint64_t>(config_.run.seed));
  statistics_ = allocate_statistics(*model_, stream_, memory_);
  step_options_ = {.clip_norm = config_.optim.clip_norm,
                   .dynamic_scale = store_->dtype() == DType::kFp16};
  state_ = first_state(step_options_);
  record_ = std::make_unique<StepRecord>(stream_, memory_, machine_.staging, accumulation(),
                                         step_options_);
  upload_ = std::make_unique<Uploader>(stream_, memory_, machine_.staging, dataset_->info(),
                                       store_->dtype());
  optimizer_ = make_optimizer(config_.optim, store_->shards(), memory_);
  tape_ = std::make_unique<Tape>(
      [this](Context& context, Parameter& parameter) { store_->on_final(context, parameter); });
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
  peak_flops_ = machine_.peak_flops(store_->dtype());
  window_start_ = last_save_time_ = Clock::now();
  while (step_ < config_.train.steps) {
    const std::vector<MicroBatch> batch = next_batch();
    const StepPlan plan = plan_step(batch);
    if (plan.stop) {
      return finish(true);
    }
    step(batch, plan);
    const bool last = step_ == config_.train.steps;
    if (config_.train.eval_every > 0 && step_ % config_.train.eval_every == 0 && !last) {
      validate();
    }
    if (!last && (plan.save || (config_.checkpoint.every_steps > 0 &&
                                step_ % config_.checkpoint.every_steps == 0))) {
      save();
    }
  }
  return finish(false);
}

std::vector<MicroBatch> Trainer::next_batch() {
  std::vector<MicroBatch> batch;
  for (int64_t i = 0; i < accumulation(); ++i) {
    batch.push_back(loader_->next());
  }
  return batch;
}

Trainer::StepPlan Trainer::plan_step(const std::vector<MicroBatch>& batch) {
  double targets = 0;
  for (const MicroBatch& micro : batch) {
    targets += static_cast<double>(micro.target_count);
  }
  const double minutes = config_.checkpoint.every_minutes;
  const bool due =
      comm_.rank() == 0 && minutes > 0 && seconds_since(last_save_time_) >= 60 * minutes;
  const std::vector<double> sums = comm_.sum(
      std::vector<double>{targets, stop_signal_.requested() ? 1.0 : 0.0, due ? 1.0 : 0.0});
  if (sums[0] == 0) {
    throw AgreedError(
        ExitCode::kData,
        str("step ", step_ + 1, ": the global batch has no targets; every one is ignored"));
  }
  return {.targets = sums[0], .stop = sums[1] > 0, .save = sums[2] > 0};
}

// Enqueues a whole step, then reads the figures of the one before.
void Trainer::step(const std::vector<MicroBatch>& batch, const StepPlan& plan) {
  const int64_t wire_before = comm_.wire().payload_bytes;
  Pending next{.step = step_ + 1, .lr = lr_at(schedule_, step_), .targets = plan.targets};
  store_->begin_step();
  for (size_t i = 0; i < batch.size(); ++i) {
    next.exposure = run_micro_batch(batch[i], 1.0 / plan.targets, static_cast<int64_t>(i));
  }
  sum_statistics();
  record_->decide(stream_, store_->shards());
  update();
  next.wire_bytes = comm_.wire().payload_bytes - wire_before;
  next.record = record_->copy_to_host(stream_);
  settle();
  pending_ = std::move(next);
  val_loss_.reset();
  ++step_;
  if (stream_.device() == Device::kCpu) {
    settle();
  }
}

Exposure Trainer::run_micro_batch(const MicroBatch& micro, double seed, int64_t micro_step) {
  Context context{.stream = stream_,
                  .memory = memory_,
                  .tape = tape_.get(),
                  .random = {.seed = static_cast<uint64_t>(config_.run.seed),
                             .step = static_cast<uint64_t>(step_),
                             .first_sample = micro.first_sample},
                  .training = true};
  const DeviceBatch batch = (*upload_)(micro);
  store_->begin_backward(micro_step + 1 == accumulation());
  const Variable losses =
      cross_entropy(context, model_->forward(context, *store_, batch.input), batch.targets);
  record_->add_up(stream_, micro_step, losses.value());
  tape_->backward(context, losses, seed, &record_->state()->loss_scale);
  return store_->finish_backward(context);
}

// What the model observed, over the ranks.
void Trainer::sum_statistics() {
  if (statistics_.sum && comm_.size() > 1) {
    comm_.stream().wait(stream_.record());
    comm_.all_reduce(statistics_.sum);
    stream_.wait(comm_.stream().record());
  }
}

// running = (1 - momentum) * running + momentum * mean over the step's micro-batches on all ranks,
// with momentum 0.1, as in PyTorch: once a step, whatever the number of ranks and micro-batches.
// What a skipped step observed is forgotten.
void Trainer::update() {
  constexpr double kMomentum = 0.1;
  const ProfilerRange range("optimizer");
  StepState* state = record_->state();
  if (statistics_.sum) {
    const double scale = kMomentum / static_cast<double>(accumulation() * comm_.size());
    on_device(stream_, [&](auto device) {
      kernels::update_running(device, statistics_.sum.elements(), statistics_.running.data<float>(),
                              statistics_.sum.data<float>(), static_cast<float>(kMomentum),
                              static_cast<float>(scale), &state->apply);
    });
  }
  optimizer_->step(stream_, store_->shards(), {.lr = lr_at(schedule_, step_), .state = state});
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
            step_options_.smallest_scale, "; last checkpoint: ", saved,
            "; lower optim.lr, or set train.precision = bf16"));
  }
  if (state_.apply == 0 && !step_options_.dynamic_scale && config_.train.on_nonfinite == "stop") {
    throw AgreedError(
        ExitCode::kNumerical,
        str("step ", done.step, ": the gradient is not finite; last checkpoint: ", saved,
            "; lower optim.lr, set optim.clip_norm, or go on with train.on_nonfinite = skip"));
  }
  window_.grad_norm = state_.grad_norm;
  window_.lr = done.lr;
  window_.wire_bytes = done.wire_bytes;
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

// Gathers what the ranks measured in one control message, and writes it down.
void Trainer::log_step(const Pending& done) {
  const auto ranks = static_cast<size_t>(comm_.size()), rank = static_cast<size_t>(comm_.rank());
  const auto losses = done.record.losses.as<double>();
  const size_t micros = losses.size();
  std::vector<double> values((micros + 3) * ranks,
                             0.0);  // by rank: losses, wire bytes, exposed seconds, peak bytes
  double* own = values.data() + rank * (micros + 3);
  std::ranges::copy(losses, own);
  own[micros] = static_cast<double>(window_.wire_bytes);
  own[micros + 1] = window_.exposed_comm_s;
  own[micros + 2] = static_cast<double>(memory_.total().peak_bytes);
  values = comm_.sum(values);

  double loss = 0, wire = 0, exposed = 0, peak = 0;
  for (size_t r = 0; r < ranks; ++r) {
    const double* of_rank = values.data() + r * (micros + 3);
    for (size_t i = 0; i < micros; ++i) {
      loss += of_rank[i];
    }
    wire = std::max(wire, of_rank[micros]);
    exposed = std::max(exposed, of_rank[micros + 1]);
    peak = std::max(peak, of_rank[micros + 2]);
  }
  window_.step = done.step;
  window_.loss = loss / done.targets;
  window_.loss_scale = state_.loss_scale;
  window_.skipped = state_.skipped;
  window_.wire_bytes = static_cast<int64_t>(wire);
  window_.exposed_comm_s = exposed;
  window_.peak_bytes = static_cast<int64_t>(peak);
  window_.seconds = seconds_since(window_start_);
  window_.samples = window_.steps * config_.train.global_batch;
  if (peak_flops_ > 0) {
    window_.mfu = model_->flops_per_sample() * static_cast<double>(window_.samples) /
                  window_.seconds / (peak_flops_ * static_cast<double>(ranks));
  }
  if (log_) {
    log_->training(window_);
  }
  window_ = {};
  window_start_ = Clock::now();
}

void Trainer::validate() {
  settle();
  const Clock::time_point start = Clock::now();
  const Evaluation result =
      evaluate(*model_, *store_, *dataset_, config_.model.context, config_.train.eval_batch(),
               config_.train.eval_batches, stream_, memory_, *upload_, comm_);
  val_loss_ = result.loss;
  if (log_) {
    log_->validation(step_, result);
  }
  window_start_ += Clock::now() - start;  // save() below accounts for itself
  if (result.loss < best_val_loss_) {
    best_val_loss_ = result.loss;
    if (last_saved_ != step_) {
      save();
    }
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
  if (last_saved_ != step_) {
    save();
  }
  if (log_) {
    log_->finish(stopped, step_, last_checkpoint_);
  }
  return stopped ? ExitCode::kStopped : ExitCode::kOk;
}

}  // namespace tandem
