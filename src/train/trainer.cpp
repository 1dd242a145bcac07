#include "src/train/trainer.h"

#include <algorithm>
#include <cmath>

#include "comm/agreement.h"
#include "layers/cross_entropy.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/sgd.h"
#include "src/core/reduce.h"
#include "src/train/gemm_rate.h"
#include "src/train/model_zoo.h"

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

Trainer::Trainer(const Config& config, World& world, Memory& memory)
    : config_(config),
      world_(world),
      comm_(world.communicator()),
      directory_(config.run),
      memory_(memory),
      stream_(Stream::compute(Device::kCpu)),
      stop_signal_(world.rank() == 0) {
  world.set_timeout_s(config.dist.timeout_s);
  use_cpu_share(config.run.threads, world.local_size());
  agree(comm_, [] { claim_gemm_buffers(); });
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
                          .unused_is_error = config_.dist.unused == "error"});
  store_->initialize(static_cast<uint64_t>(config_.run.seed));
  allocate_statistics(*model_, memory_);
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
  gemm_rate_ = measure_gemm_rate();
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

void Trainer::step(const std::vector<MicroBatch>& batch, const StepPlan& plan) {
  const int64_t wire_before = comm_.wire().payload_bytes;
  store_->begin_step();
  losses_.clear();
  for (size_t i = 0; i < batch.size(); ++i) {
    losses_.push_back(run_micro_batch(batch[i], 1.0 / plan.targets, i + 1 == batch.size()));
  }
  batch_targets_ = plan.targets;
  double squared = 0;
  for (const Shard& shard : store_->shards()) {
    squared += on_device(stream_, [&](auto device) {
      return squared_norm(device, shard.grad.data<float>(), shard.grad.elements());
    });
  }
  const double grad_norm = std::sqrt(squared);
  update_statistics(std::isfinite(grad_norm));
  update_parameters(grad_norm);
  window_.wire_bytes = comm_.wire().payload_bytes - wire_before;
  ++window_.steps;
  if (step_ % config_.train.log_every == 0 || step_ == 1 || step_ == config_.train.steps) {
    log_step();
  }
  if (log_) {
    log_->step(step_);
  }
}

// Returns the sum of the losses of the micro-batch's targets.
double Trainer::run_micro_batch(const MicroBatch& micro, double seed, bool last) {
  Context context{.stream = stream_,
                  .memory = memory_,
                  .tape = tape_.get(),
                  .random = {.seed = static_cast<uint64_t>(config_.run.seed),
                             .step = static_cast<uint64_t>(step_),
                             .first_sample = micro.first_sample},
                  .training = true};
  const DeviceBatch batch = upload(memory_, micro, dataset_->info());
  store_->begin_backward(last);
  const Variable losses =
      cross_entropy(context, model_->forward(context, *store_, batch.input), batch.targets);
  const double loss = on_device(
      stream_, [&](auto device) { return sum(device, losses.data<float>(), losses.elements()); });
  tape_->backward(context, losses, seed);
  window_.exposed_comm_s += store_->finish_backward(context);
  return loss;
}

// running = (1 - momentum) * running + momentum * mean over the step's micro-batches on all ranks.
// Momentum 0.1, as in PyTorch. Once a step, whatever the number of ranks and micro-batches; what a
// skipped step observed is forgotten. The gradient's norm, and so `keep`, is the same on all ranks.
void Trainer::update_statistics(bool keep) {
  constexpr double kMomentum = 0.1;
  const std::vector<RunningStatistics*> all = model_->statistics();
  if (all.empty()) {
    return;
  }
  std::vector<double> sums;
  for (const RunningStatistics* statistics : all) {
    const auto values = statistics->sum.as<float>();
    sums.insert(sums.end(), values.begin(), values.end());
  }
  sums = comm_.sum(sums);
  const double scale = kMomentum / static_cast<double>(accumulation() * comm_.size());
  size_t next = 0;
  for (const RunningStatistics* statistics : all) {
    float* running = statistics->running.data<float>();
    float* sum = statistics->sum.data<float>();
    for (int64_t i = 0; i < statistics->sum.elements(); ++i) {
      const double updated = (1 - kMomentum) * running[i] + scale * sums[next++];
      running[i] = keep ? static_cast<float>(updated) : running[i];
      sum[i] = 0;
    }
  }
}

void Trainer::update_parameters(double grad_norm) {
  val_loss_.reset();
  window_.grad_norm = grad_norm;
  window_.lr = lr();
  if (!std::isfinite(grad_norm)) {
    if (config_.train.on_nonfinite == "stop") {
      throw AgreedError(
          ExitCode::kNumerical,
          str("step ", step_ + 1, ": the gradient is not finite; last checkpoint: ",
              last_checkpoint_.empty() ? "none" : last_checkpoint_,
              "; lower optim.lr, set optim.clip_norm, or go on with train.on_nonfinite = skip"));
    }
    ++skipped_;
  } else {
    optimizer_->step(stream_, store_->shards(),
                     {.lr = lr(),
                      .step = step_ + 1 - skipped_,
                      .grad_scale = clip_factor(grad_norm, config_.optim.clip_norm)});
  }
  ++step_;
}

// Gathers what the ranks measured in one control message, and writes it down.
void Trainer::log_step() {
  const auto ranks = static_cast<size_t>(comm_.size()), rank = static_cast<size_t>(comm_.rank());
  const size_t micros = losses_.size();
  std::vector<double> values((micros + 3) * ranks,
                             0.0);  // by rank: losses, wire bytes, exposed seconds, peak bytes
  double* own = values.data() + rank * (micros + 3);
  std::ranges::copy(losses_, own);
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
  window_.step = step_;
  window_.loss = loss / batch_targets_;
  window_.wire_bytes = static_cast<int64_t>(wire);
  window_.exposed_comm_s = exposed;
  window_.peak_bytes = static_cast<int64_t>(peak);
  window_.seconds = seconds_since(window_start_);
  window_.samples = window_.steps * config_.train.global_batch;
  window_.mfu = model_->flops_per_sample() * static_cast<double>(window_.samples) /
                window_.seconds / (gemm_rate_ * static_cast<double>(ranks));
  if (log_) {
    log_->training(window_);
  }
  window_ = {};
  window_start_ = Clock::now();
}

void Trainer::validate() {
  const Clock::time_point start = Clock::now();
  const Evaluation result =
      evaluate(*model_, *store_, *dataset_, config_.model.context, config_.train.eval_batch(),
               config_.train.eval_batches, stream_, memory_, comm_);
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
