#include "src/report/run_log.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <iterator>
#include <utility>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/report/version.h"

namespace tandem {

namespace {

constexpr size_t kRanksInLog = 64;  // so many times, to a microsecond, take half of a line

// Opens metrics.jsonl after moving aside the lines that the resumed run will write again.
MetricsLog open_metrics(const RunDirectory& directory, const RunState& state) {
  truncate_after(directory.metrics(), state.step, state.val_loss.has_value());
  return MetricsLog(directory.metrics(), directory.folder());
}

// What the HParams tab shows: the settings that a result may depend on.
std::vector<Assignment> hparams_of(const Config& config) {
  std::vector<Assignment> hparams = parse_ini(config.ini_text(), "settings");
  std::erase_if(hparams, [](const Assignment& setting) {
    const std::string section = setting.key.substr(0, setting.key.find('.'));
    const bool matters = section != "log" && section != "checkpoint" && section != "run";
    return (!matters && setting.key != "run.seed") || setting.value.empty();
  });
  return hparams;
}

std::vector<std::string> each_once(const std::vector<std::string>& hosts) {
  std::vector<std::string> once;
  std::ranges::copy_if(hosts, std::back_inserter(once),
                       [&](const std::string& host) { return !std::ranges::count(once, host); });
  return once;
}

}  // namespace

void say_nothing_to_do(const Config& config, const RunDirectory& directory,
                       const std::string& checkpoint) {
  const std::string line =
      str("nothing to do: ", directory.path(), " has done all ", config.train.steps,
          " steps (checkpoint ", checkpoint, "); raise train.steps\n");
  std::fputs(line.c_str(), stdout);
}

RunLog::RunLog(const Config& config, const RunDirectory& directory, const RunState& state,
               const DatasetInfo& data, const std::vector<std::string>& hosts)
    : config_(config),
      directory_(directory),
      data_(data),
      run_(RunReport::of_earlier_starts(directory.report(), state.step)),
      cost_(config, directory, run_.starts, each_once(hosts).size()),
      metrics_(open_metrics(directory, state)),
      console_({.mode = config.log.progress,
                .first_step = state.step,
                .steps = config.train.steps,
                .log_every = config.train.log_every,
                .unit = config_.unit()}),
      hosts_(hosts) {
  const LoggedSoFar so_far = read_logged(directory.metrics());
  elapsed_before_s_ = so_far.elapsed_s;
  run_.starts.push_back({.version = version(),
                         .time = unix_now_s(),
                         .hosts = each_once(hosts),
                         .ranks = static_cast<int64_t>(hosts.size()),
                         .first_step = state.step,
                         .step = state.step,
                         .unit = config_.unit(),
                         .training = so_far.training,
                         .validation = so_far.validation});
  if (config.log.tensorboard) {
    const bool goes_on = state.step > 0 || run_.starts.size() > 1;  // one may have saved nothing
    const auto resumed = goes_on ? std::optional(state.step) : std::nullopt;
    tensorboard_ =
        std::make_unique<TensorBoardWriter>(directory.tensorboard(), resumed, directory.folder());
  }
}

void RunLog::start(const RunSummary& s, const std::string& resumed_from,
                   const std::vector<std::string>& changes, const std::string& weights_from) {
  samples_per_epoch_ = s.samples_per_epoch;
  run_.packing = s.packing;
  skipped_batches_ = s.skipped_batches;
  now().device = s.machine;
  write_report();
  to_tensorboard([&](TensorBoardWriter& writer) { writer.add_hparams(hparams_of(config_)); });
  const double flops = s.flops_per_sample * static_cast<double>(config_.train.global_batch);
  console_.print("run         ", directory_.path());
  const std::string trained =
      s.parameters.trained < s.parameters.all ? str(", ", s.parameters.trained, " trained") : "";
  console_.print("model       ", config_.model.description(), "; ", s.parameters.all, " parameters",
                 trained);
  console_.print("data        ", data_.path, ": ", data_.train_count, " ", config_.unit(),
                 " to train, ", data_.val_count, " to validate; an epoch is ",
                 s.samples_per_epoch / config_.train.global_batch, " steps",
                 s.packing ? ", " + s.packing->text() : "");
  const std::string takers =
      s.batch.tensor > 1 ? str(counted(s.batch.ranks, "group"), " of ", s.batch.tensor, " ranks")
                         : counted(s.batch.ranks, "rank");
  console_.print("batch       ", s.batch.global_batch, " = ", s.batch.micro_batch(),
                 " micro-batch x ", s.batch.accumulation(), " accumulation x ", takers,
                 s.batch.islands > 1 ? str(" x ", s.batch.islands, " islands; ") : "; ",
                 format_count(flops, " "), "FLOP a step");
  const std::string peak =
      s.peak_flops > 0 ? str(", ", format_count(s.peak_flops, " "), "FLOP/s at best") : "";
  console_.print("machine     ", s.machine, " a rank", peak, "; gradients in ", s.buckets,
                 s.buckets == 1 ? " bucket of " : " buckets, together ",
                 format_bytes(s.gradient_bytes));
  console_.print("ranks       ", s.sharing);
  if (!s.graph.empty()) {
    console_.print("step        ", s.graph);
  }
  console_.print("memory      a rank: ", s.memory, "; activations need more");
  if (s.measured_choices > 0) {
    console_.print("choices     ", s.measured_choices, " measured in ",
                   format_duration(s.measuring_s), "; kept in ", directory_.choices());
  }
  if (!resumed_from.empty()) {
    console_.print("resuming    ", resumed_from, " at step ", now().first_step, " of ",
                   config_.train.steps);
  } else if (!weights_from.empty()) {
    console_.print("weights     ", weights_from);
  }
  for (const std::string& change : changes) {
    console_.print("changed     ", change);
  }
}

void RunLog::log(const std::function<void()>& writing) {
  directory_.require_in_place();
  try {
    writing();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kData) {
      throw;
    }
    directory_.require_in_place();
    if (++lost_ == 1) {
      complain(str("not logged: ", error.what(), "; training goes on"));
    }
  }
}

void RunLog::to_tensorboard(const std::function<void(TensorBoardWriter&)>& writing) {
  if (tensorboard_) {
    log([&] { writing(*tensorboard_); });
  }
}

double RunLog::duration_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
}

std::vector<Metric> RunLog::place_of(int64_t step) const {
  const int64_t batch = config_.train.global_batch;
  return {{"epoch", static_cast<double>(step * batch) / static_cast<double>(samples_per_epoch_)},
          {config_.model->reads_text() ? "tokens" : "samples", units_until(step)}};
}

void RunLog::append(int64_t step, std::vector<Metric> metrics) {
  metrics.insert(metrics.begin(), {"step", step});
  metrics.push_back({"elapsed_s", elapsed_before_s_ + duration_s()});
  metrics.push_back({"time", unix_now_s()});
  log([&] { metrics_.append(metrics); });
}

// Writes report.json with how far this start has come.
void RunLog::write_report() {
  now().duration_s = duration_s();
  const int64_t samples = (now().step - now().first_step) * config_.train.global_batch;
  now().usd = cost_.usd();
  now().units_per_s = static_cast<double>(samples * config_.units_per_sample()) / now().duration_s;
  log([&] { replace_file(directory_.report(), run_.json(), directory_.folder()); });
}

void RunLog::step(int64_t step, double loss) {
  now().step = step;
  report_.step = step;
  report_.loss = loss;
  console_.step(report_);
}

void RunLog::add_scalars(int64_t step, const std::string& kind,
                         const std::vector<Metric>& metrics) {
  to_tensorboard([&](TensorBoardWriter& writer) { writer.add_metrics(step, kind, metrics); });
}

std::vector<Metric> RunLog::slowest_metrics(const StepMetrics& m) const {
  std::vector<Metric> metrics = {
      {"rank", int64_t{m.slowest.rank}},
      {"host", hosts_[static_cast<size_t>(m.slowest.rank)]},
      {"ratio", m.slowest.ratio},
      {"step_ms", 1000 * m.slowest.time.seconds / static_cast<double>(m.steps)}};
  for (const Phase phase : kStepPhases) {
    metrics.push_back({str(name_of(phase), "_ms"),
                       1000 * m.slowest.time.of(phase) / static_cast<double>(m.steps)});
  }
  return metrics;
}

void RunLog::training(const StepMetrics& m) {
  const auto units = static_cast<double>(m.samples * config_.units_per_sample());
  const double units_per_s = units / m.seconds;
  const double step_ms = 1000 * m.seconds / static_cast<double>(m.steps);
  std::vector<Metric> metrics = place_of(m.step);
  metrics.insert(metrics.end(),
                 {{"loss", m.loss},
                  {"lr", m.lr},
                  {"grad_norm", m.grad_norm},
                  {"step_ms", step_ms},
                  {std::string(config_.unit()) + "_per_s", units_per_s},
                  {"mfu", m.mfu},
                  {"wire_bytes", m.use.wire.payload().total()},
                  {"exposed_comm_ms", 1000 * m.exposed_comm_s / static_cast<double>(m.steps)},
                  {"slowest", slowest_metrics(m)},
                  {"peak_bytes", m.use.peak_bytes},
                  {"wire", wire_metrics(m.use.wire)},
                  {"memory", memory_metrics(m.use.memory_peak)}});
  if (m.own_s.size() <= kRanksInLog) {
    metrics.push_back({"own_ms", mapped(m.own_s, [&](double seconds) {
                         return std::round(1e6 * seconds / static_cast<double>(m.steps)) / 1000;
                       })});
  }
  if (config_.train.precision == DType::kFp16) {
    metrics.push_back({"loss_scale", m.loss_scale});
    metrics.push_back({"skipped", m.skipped});
  }
  if (config_.train.offload != Offload::kNone) {
    metrics.push_back({"host_bytes", m.host_bytes});
    metrics.push_back({"exposed_copy_ms", 1000 * m.exposed_copy_s / static_cast<double>(m.steps)});
  }
  if (const auto& packing = run_.packing) {
    metrics.insert(metrics.end(),
                   {{"padding", packing->padding}, {"documents_cut", packing->documents_cut}});
  }
  if (m.drift) {
    metrics.push_back({"drift", *m.drift});
  }
  std::ranges::move(cost_.metrics(units_until(m.step)), std::back_inserter(metrics));
  std::ranges::move(gpus_.add(m.gpus, hosts_.size(), units, config_.unit()),
                    std::back_inserter(metrics));
  if (const std::string gaps = gpus_.new_gaps(m.gpus); !gaps.empty()) {
    console_.print("not known   of GPUs: ", gaps, "; NVML or the GPU does not have it");
  }
  add_scalars(m.step, "train", metrics);
  append(m.step, std::move(metrics));
  now().training.add(m.loss);
  if (const std::optional<int> rank = stragglers_.add(m.slowest, m.steps)) {
    const RankTime& time = m.slowest.time;
    const auto share = [&](Phase phase) {
      return str(std::lround(100 * time.of(phase) / time.own()), " % ");
    };
    console_.print("warning     rank ", *rank, " on ", hosts_[static_cast<size_t>(*rank)],
                   " makes the others wait: slowest in 8 of the last 10 logged steps, now ",
                   std::lround(100 * m.slowest.ratio - 100), " % above the median; it spends ",
                   share(Phase::kCompute), "computing, ", share(Phase::kData), "waiting for data, ",
                   share(Phase::kOptimizer), "in the optimizer",
                   clock_beside_median(m.gpus, *rank));
  }
  warn_of_long_ways(step_ms / 1000, m.step);
  report_ = {.step = m.step,
             .loss = m.loss,
             .lr = m.lr,
             .grad_norm = m.grad_norm,
             .step_s = step_ms / 1000,
             .units_per_s = units_per_s};
}

// A request to stop takes effect where islands meet. The first step does not count: it is slower.
void RunLog::warn_of_long_ways(double step_s, int64_t step) {
  constexpr double kGrace_s = 110;  // as in launch/run and launch/supervise.sh
  const double apart_s = step_s * static_cast<double>(config_.dist.sync_every);
  if (config_.dist.islands == 1 || step == 1 || std::exchange(knows_ways_, true) ||
      apart_s <= kGrace_s) {
    return;
  }
  console_.print("warning     islands meet every ", std::lround(apart_s),
                 " s, and a request to stop takes effect only then, but launchers wait ", kGrace_s,
                 " s for it; lower dist.sync_every, or give more --grace");
}

// One line on the console for steps that follow each other.
void RunLog::skipped(int64_t step) {
  now().step = step;
  ++skipped_batches_;
  std::vector<Metric> metrics = place_of(step);
  metrics.push_back({"skipped_batch", true});
  append(step, std::move(metrics));
  if (std::exchange(skipped_, step) != step - 1) {
    console_.print("step ", step, "/", config_.train.steps,
                   "  no update, as train.skip_batches = ", config_.train.skip_batches);
  }
}

void RunLog::validation(int64_t step, const Evaluation& result) {
  const bool text = config_.model->reads_text();
  const double second = text ? std::exp(result.loss) : result.accuracy;
  std::vector<Metric> metrics = place_of(step);
  std::vector<Metric> shown = {{"loss", result.loss}, {text ? "perplexity" : "accuracy", second}};
  metrics.push_back({"val_loss", result.loss});
  metrics.push_back({text ? "perplexity" : "val_accuracy", second});
  std::string figures =
      formatted(text ? "val_loss %.4f  perplexity %.2f" : "val_loss %.4f  accuracy %.4f",
                result.loss, second);
  if (result.choices_acc) {
    metrics.push_back({"choices_acc", *result.choices_acc});
    shown.push_back(metrics.back());
    figures += formatted("  choices_acc %.4f", *result.choices_acc);
  }
  append(step, std::move(metrics));
  now().validation.add(result.loss);
  add_scalars(step, "val", shown);
  console_.print("step ", step, "/", config_.train.steps, "  ", figures, "  over ", result.targets,
                 " targets");
}

// As a block of code, because samples are not Markdown.
void RunLog::show_text(int64_t step, const std::string& sample) {
  std::string block = "    ";
  for (const char letter : sample) {
    block += letter;
    block += letter == '\n' ? "    " : "";
  }
  to_tensorboard([&](TensorBoardWriter& writer) { writer.add_text(step, "samples/text", block); });
}

void RunLog::show_images(int64_t step, const PredictedImages& predicted) {
  to_tensorboard([&](TensorBoardWriter& writer) {
    writer.add_picture(step, "samples/predictions", grid_of(predicted));
    writer.add_text(step, "samples/predictions_table", table_of(predicted));
  });
}

void RunLog::show_histograms(int64_t step, const Histograms& histograms) {
  to_tensorboard([&](TensorBoardWriter& writer) { writer.add_histograms(step, histograms); });
}

void RunLog::saved(int64_t step, const SaveMetrics& m) {
  const auto slowest = static_cast<size_t>(std::ranges::max_element(m.write_s) - m.write_s.begin());
  std::vector<double> sorted = m.write_s;
  std::ranges::sort(sorted);
  const double median = sorted[(sorted.size() - 1) / 2];
  const std::vector<Metric> rank = {{"rank", static_cast<int64_t>(slowest)},
                                    {"host", hosts_[slowest]},
                                    {"ratio", median > 0 ? sorted.back() / median : 1}};
  const std::vector<Metric> figures = {{"stall_ms", 1000 * m.stall_s},
                                       {"write_ms", 1000 * sorted.back()},
                                       {"slowest", rank},
                                       {"steps", m.steps}};
  append(step, {{"checkpoint", figures}});
  add_scalars(step, "checkpoint", figures);
  write_report();
}

void RunLog::finish(bool stopped, const std::string& checkpoint, RunReport report) {
  report.first_step = now().first_step;
  now().state = stopped ? "stopped" : "finished";
  now().step = report.step;
  if (report.step > report.first_step) {
    console_.print(report.tables(1));
    report.packing = run_.packing;
    report.starts = std::move(run_.starts);
    run_ = report;
  }
  write_report();
  to_tensorboard([](TensorBoardWriter& writer) { writer.end_hparams(); });
  if (lost_ > 0) {
    console_.print("not logged  ", counted(lost_, "record"), ": the files could not be written");
  }
  if (cost_.is_known()) {
    console_.print("cost        " + cost_.text(units_until(report.step)));
  }
  const char* again =
      config_.checkpoint.resume == "none" ? "checkpoint.resume = auto" : "the same command";
  console_.print(stopped ? str("stopped on request after step ", report.step, "; ", again,
                               " goes on from here")
                         : str("finished ", report.step, " steps"));
  console_.print("checkpoint  ", checkpoint.empty() ? "none" : checkpoint);
  console_.print("metrics     ", directory_.metrics(), "; ", directory_.report(),
                 config_.log.tensorboard ? "; tensorboard --logdir " + config_.run.dir : "");
  if (stopped || checkpoint.empty()) {
    return;
  }
  const bool text = config_.model->reads_text();
  console_.print("next        ", program_invocation_name, text ? " generate" : " eval",
                 " --checkpoint ", shell_word(directory_.path()), text ? " --prompt \"...\"" : "");
}

}  // namespace tandem
