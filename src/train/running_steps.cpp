#include "src/train/running_steps.h"

#include <chrono>

#include "src/device/profiler_range.h"
#include "src/trace/flight_log.h"

namespace tandem {

RunningSteps::RunningSteps(const Config& config, World& world, Machine& machine, const Model& model,
                           TrainingStep& training, Uploader& upload, Islands& islands,
                           const RunDirectory& directory, RunState& state)
    : config_(config),
      world_(world),
      machine_(machine),
      training_(training),
      upload_(upload),
      islands_(islands),
      state_(state),
      window_(machine, model, training.store().values.dtype(), config, islands.exchanged()),
      tracing_(config.log.trace, machine, training.timeline(), directory, world.host()) {}

void RunningSteps::begin() {
  window_.begin();
  static_cast<void>(training_.timeline().take(machine_.stream));
}

void RunningSteps::enqueue(std::vector<MicroBatch> batch, double targets,
                           const std::function<bool()>& settles) {
  flight_log().set_step(state_.step + 1);
  Enqueued next{.step = state_.step + 1,
                .lr = lr_at(config_.schedule(), state_.step),
                .targets = targets,
                .batch = std::move(batch)};
  training_.timeline().enter(machine_.stream, Phase::kCompute);
  next.record = training_.run(send_input(next));
  state_.val_loss.reset();
  ++state_.step;
  next.drift = islands_.end_step(state_.step, settles(), [&] {
    finish();
    look(next);
  });
  next.timeline = training_.timeline().take(machine_.stream);
  next.record.done = next.timeline.marks().back().event;  // the timeline may be read then, too
  next.end = window_.mark();
  steps_.push_back(std::move(next));
}

TrainingStep::Input RunningSteps::send_input(const Enqueued& step) {
  return {.step = step.step - 1,
          .lr = step.lr,
          .targets = step.targets,
          .batch = [this](int64_t i) { return upload_.fetch(i); },
          .memory = upload_.send(step.batch)};
}

void RunningSteps::finish(size_t running) {
  while (steps_.size() > running) {
    const Enqueued done = std::move(steps_.front());
    steps_.pop_front();
    check(done);
  }
}

void RunningSteps::look(const Enqueued& done) {
  machine_.mesh()->data().wait(done.record.done);
  lost_.look(done.step, done.record.step_state(), training_.options(), islands_.number(),
             [&] { return training_.run_again(send_input(done), done.record); });
}

void RunningSteps::check(const Enqueued& done) {
  look(done);
  if (lost_.found()) {
    return;
  }
  const StepState state = done.record.step_state();
  loss_scale_ = state_.step_state(training_.options()).loss_scale;
  state_.take(state, training_.options());
  if (config_.dist.timeout_s == 0) {
    world_.set_timeout_s(DistConfig::kLaterTimeout_s);
  }
  window_.add(done.end, done.timeline.seconds());
  if (done.drift) {
    machine_.mesh()->data().wait(done.drift->done);
    drift_ = done.drift->value();
  }
  tracing_.add(done.step, done.timeline);
  if (done.step % config_.train.log_every == 0 || done.step == 1 ||
      done.step == config_.train.steps) {
    log_step(done, state);
  }
  if (log_) {
    log_->step(done.step, done.record.loss() / done.targets);
  }
}

void RunningSteps::log_step(const Enqueued& done, const StepState& state) {
  StepMetrics metrics{.step = done.step,
                      .loss = islands_.mean_loss(done.step, done.record.loss(), done.targets),
                      .lr = done.lr,
                      .grad_norm = state.grad_norm,
                      .loss_scale = state.loss_scale,
                      .skipped = state.skipped,
                      .drift = std::exchange(drift_, std::nullopt)};
  during_wait(Phase::kCommunication,
              [&] { window_.close(done.end, islands_.all_meet_after(done.step), metrics); });
  if (log_) {
    log_->training(metrics);
  }
  window_.tell(metrics, log_ ? log_->usd() : std::nullopt);
}

double RunningSteps::leave_out(Phase phase, std::string_view reason,
                               const std::function<void()>& work) {
  const auto start = MetricsWindow::Clock::now();
  RunLog* shown = reason.empty() ? nullptr : log_;
  if (shown) {
    shown->pause(reason);
  }
  {
    const ProfilerRange range{std::string(reason)};
    const MetricsWindow::Mark begin = window_.mark();
    training_.timeline().during(machine_.stream, phase, work);
    if (phase == Phase::kElsewhere) {
      window_.leave_out_messages(begin);
    }
  }
  if (shown) {
    shown->go_on();
  }
  const auto time = MetricsWindow::Clock::now() - start;
  window_.leave_out_time(time);
  return std::chrono::duration<double>(time).count();
}

void RunningSteps::turn_trace() {
  leave_out(Phase::kElsewhere, "tracing", [&] { tracing_.turn(); });
}

void RunningSteps::finish_trace() {
  leave_out(Phase::kElsewhere, "", [&] { tracing_.finish(state_.step + 1); });
}

}  // namespace tandem
