#include "src/train/run_log.h"

#include <cmath>

#include "src/core/error.h"

namespace tandem {

namespace {

// Opens metrics.jsonl behind the lines that the resumed run will not write again.
MetricsLog open_metrics(const std::string& path, int64_t step) {
  truncate_after(path, step);
  return MetricsLog(path);
}

}  // namespace

RunLog::RunLog(const Config& config, const RunDirectory& directory, int64_t step,
               const DatasetInfo& data)
    : config_(config),
      directory_(directory),
      data_(data),
      metrics_(open_metrics(directory.metrics(), step)),
      console_(config.log.progress, stdout) {
  if (config.log.tensorboard) {
    const auto resumed = step > 0 ? std::optional(step) : std::nullopt;
    tensorboard_ = std::make_unique<TensorBoardWriter>(directory.tensorboard(), resumed);
  }
  progress_.step = step;
  progress_.steps = config.train.steps;
  progress_.unit = unit();
}

void RunLog::start(const RunSummary& s, const std::string& resumed_from,
                   const std::string& weights_from) {
  const ModelConfig& model = config_.model;
  const std::string shape =
      model.reads_text()       ? str(model.layers, " layers, ", model.heads, " heads, width ",
                                     model.width, ", context ", model.context)
      : model.kind == "resnet" ? str("depth ", model.depth)
                               : str(model.layers, " layers, width ", model.width);
  const double per_sample = s.flops_per_sample / 1e9;
  char flops[32];
  std::snprintf(flops, sizeof flops, "%.3g",
                per_sample * static_cast<double>(config_.train.global_batch));
  console_.say(str("run         ", directory_.path()));
  console_.say(str("model       ", model.kind, ": ", shape, "; ", s.parameters, " parameters"));
  console_.say(str("data        ", data_.path, ": ", data_.train_count, " ", unit(), " to train, ",
                   data_.val_count, " to validate; an epoch is ",
                   s.samples_per_epoch / config_.train.global_batch, " steps"));
  console_.say(str("batch       ", config_.train.global_batch, " = ", s.micro_batch,
                   " micro-batch x ", s.accumulation, " accumulation x ", s.ranks,
                   s.ranks == 1 ? " rank; " : " ranks; ", flops, " GFLOP a step"));
  console_.say(str("machine     ", s.threads, s.threads == 1 ? " thread" : " threads",
                   " a rank; gradients in ", s.buckets,
                   s.buckets == 1 ? " bucket of " : " buckets, together ",
                   format_bytes(s.gradient_bytes)));
  console_.say(str("memory      ", s.memory, " a rank, activations on top"));
  if (!resumed_from.empty()) {
    console_.say(
        str("resuming    ", resumed_from, " at step ", progress_.step, " of ", progress_.steps));
  } else if (!weights_from.empty()) {
    console_.say(str("weights     ", weights_from));
  }
}

void RunLog::progress(int64_t step) {
  progress_.step = step;
  console_.update(progress_);
}

void RunLog::training(const StepMetrics& m) {
  const double units_per_s = static_cast<double>(m.samples * units_per_sample()) / m.seconds;
  const double step_ms = 1000 * m.seconds / static_cast<double>(m.steps);
  metrics_.append({{"step", m.step},
                   {"loss", m.loss},
                   {"lr", m.lr},
                   {"grad_norm", m.grad_norm},
                   {"step_ms", step_ms},
                   {std::string(unit()) + "_per_s", units_per_s},
                   {"mfu", m.mfu},
                   {"wire_bytes", m.wire_bytes},
                   {"exposed_comm_ms", 1000 * m.exposed_comm_s / static_cast<double>(m.steps)},
                   {"peak_bytes", m.peak_bytes}});
  if (tensorboard_) {
    const std::string rate_tag = str("train/", unit(), "_per_s");
    tensorboard_->add(m.step, {{"train/loss", m.loss},
                               {"train/lr", m.lr},
                               {"train/grad_norm", m.grad_norm},
                               {rate_tag, units_per_s}});
  }
  progress_.step = m.step;
  progress_.loss = m.loss;
  // Smoothed, so that one slow step does not make the time left jump.
  progress_.units_per_s =
      progress_.units_per_s > 0 ? 0.8 * progress_.units_per_s + 0.2 * units_per_s : units_per_s;
  progress_.seconds_left = static_cast<double>((progress_.steps - m.step) *
                                               config_.train.global_batch * units_per_sample()) /
                           progress_.units_per_s;
  console_.logged(progress_);
}

void RunLog::validation(int64_t step, const Evaluation& result) {
  const bool text = config_.model.reads_text();
  const double second = text ? std::exp(result.loss) : result.accuracy;
  metrics_.append(
      {{"step", step}, {"val_loss", result.loss}, {text ? "perplexity" : "val_accuracy", second}});
  if (tensorboard_) {
    tensorboard_->add(
        step, {{"val/loss", result.loss}, {text ? "val/perplexity" : "val/accuracy", second}});
  }
  char figures[96];
  std::snprintf(figures, sizeof figures,
                text ? "val_loss %.4f  perplexity %.2f" : "val_loss %.4f  accuracy %.4f",
                result.loss, second);
  console_.say(str("step ", step, "/", config_.train.steps, "  ", figures, "  over ",
                   result.targets, " targets"));
}

void RunLog::finish(bool stopped, int64_t step, const std::string& checkpoint) {
  console_.say(
      stopped ? str("stopped on request after step ", step, "; the same command goes on from here")
              : str("finished ", step, " steps"));
  console_.say(str("checkpoint  ", checkpoint));
  console_.say(
      str("metrics     ", directory_.metrics(),
          config_.log.tensorboard ? "; tensorboard --logdir " + directory_.tensorboard() : ""));
  if (!stopped && config_.model.reads_text()) {
    console_.say(
        str("next        tandem generate --checkpoint ", directory_.path(), " --prompt \"...\""));
  } else if (!stopped) {
    console_.say(str("next        tandem eval --checkpoint ", directory_.path()));
  }
}

}  // namespace tandem
