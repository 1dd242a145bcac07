#include "src/train/checkpointer.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "src/core/mapped.h"
#include "src/core/visible_text.h"
#include "src/device/profiler_range.h"
#include "src/device/ranks/agreement.h"
#include "src/io/checkpoint/checkpoint.h"
#include "src/io/file.h"
#include "src/settings/changes.h"
#include "src/weights/hugging_face/settings.h"
#include "src/weights/run_directory.h"
#include "src/weights/stored_weights.h"

namespace tandem {

namespace {

// Another model may have the same shapes: 4 heads instead of 2, or more layers.
void require_same_settings(const std::string& checkpoint, const Config& then, const Config& now,
                           int64_t vocab, const std::vector<std::string>& except = {}) {
  if (const std::string changes = changed_settings(then, now, vocab, except); !changes.empty()) {
    fail(ExitCode::kConfig, checkpoint,
         " was written with other settings; set these as they were:", changes);
  }
}

// Throws when a step number would stand for other samples than it did.
void require_same_data(const std::string& checkpoint, const Manifest& manifest, const Manifest& now,
                       const DatasetInfo& data) {
  if (manifest.data_hash != data.content_hash) {
    fail_data(data.path, " is not the dataset that ", checkpoint, " was trained on; ",
              "put that one back, or start a new run with checkpoint.init_from");
  }
  if (manifest.sampler_epoch != now.sampler_epoch ||
      manifest.sampler_position != now.sampler_position) {
    fail_data(checkpoint, ": its manifest says sample ", manifest.sampler_position, " of epoch ",
              manifest.sampler_epoch, " after step ", manifest.step, ", not ", now.sampler_position,
              " of epoch ", now.sampler_epoch, ": damaged");
  }
}

}  // namespace

Checkpointer::Checkpointer(const Config& config, const Dataset& dataset, Machine& machine,
                           Model& model, TrainingStep& training)
    : config_(config),
      dataset_(dataset),
      job_(machine.mesh()->job()),
      stream_(machine.stream),
      model_(model),
      training_(training),
      checkpoints_(RunDirectory(config.run).checkpoints()),
      snapshot_(machine.stream, config.checkpoint.async) {
  agree(job_, [&] { vocabulary_hash_ = vocabulary_hash(dataset.info().path); });
  const std::string& resume = config.checkpoint.resume;
  const auto has_saved = [&] { return str(RunDirectory(config.run).has_saved(config)); };
  goes_on_ = resume == "auto" || (resume != "none" && on_root(job_, has_saved) == str(true));
}

Checkpointer::Start Checkpointer::resume() {
  Start start;
  start.state.take(first_state(training_.options()), training_.options());
  const std::vector<std::string> checkpoints = candidates();
  for (size_t i = 0; i < checkpoints.size() && start.resumed_from.empty(); ++i) {
    start.resumed_from = load(checkpoints[i], start) ? checkpoints[i] : "";
  }
  if (!start.resumed_from.empty()) {
    newest_step_ = start.state.step;
    path_ = start.resumed_from;
    repair_best(start.state);
  } else if (!checkpoints.empty()) {
    throw AgreedError(
        ExitCode::kData,
        str("run ", config_.run.name, ": none of its checkpoints can be used; repair one in ",
            checkpoints_, ", or start anew with checkpoint.resume = none"));
  } else if (!config_.checkpoint.init_from.empty()) {
    start.weights_from =
        on_root(job_, [&] { return resolve_checkpoint(config_.checkpoint.init_from); });
    load_weights_of(start.weights_from);
  }
  // Claims the memory of the copies before the first step, so that the first save need not wait.
  agree(job_, [&] { copy(); });
  saved_at_ = Clock::now();
  return start;
}

// Collective. Makes `best` a copy of the checkpoint that was resumed from, if a crash came between.
void Checkpointer::repair_best(const RunState& state) {
  if (state.val_loss != state.best_val_loss) {
    return;
  }
  const std::string is_missing = on_root(job_, [&]() -> std::string {
    try {
      const Manifest best = read_manifest(checkpoints_ + "/best");
      return RunState::read(best).val_loss == state.val_loss ? "" : "yes";
    } catch (const Error&) {
      return "yes";
    }
  });
  if (!is_missing.empty()) {
    keep_as_best();
  }
}

// Collective. The checkpoints to try, best first; none for a new run.
std::vector<std::string> Checkpointer::candidates() const {
  const std::string& resume = config_.checkpoint.resume;
  std::istringstream lines(on_root(job_, [&]() -> std::string {
    if (!goes_on_ && resume != "none") {
      if (is_hugging_face(resume)) {
        fail(ExitCode::kConfig, "checkpoint.resume = ", resume,
             " is a model, not a run; use checkpoint.init_from");
      }
      return resolve_checkpoint(resume);
    }
    if (resume == "none") {
      if (const LatestCheckpoint latest = find_latest(checkpoints_); !latest.path.empty()) {
        fail(ExitCode::kConfig, "run ", config_.run.name, " has checkpoints up to ", latest.path,
             "; checkpoint.resume = none would mix a new run with it; choose another run.name");
      }
      return "";
    }
    std::string newest_first;
    for (const auto& [step, path] : list_checkpoints(checkpoints_)) {
      if (is_committed(path)) {
        newest_first = path + "\n" + newest_first;
      } else {
        complain(str("passed over ", path, ": it has no manifest, so its save did not end"));
      }
    }
    return newest_first;
  }));
  std::vector<std::string> paths;
  for (std::string path; std::getline(lines, path);) {
    paths.push_back(path);
  }
  return paths;
}

// Collective. False if `work` finds the checkpoint damaged, and an older one may take its place.
// `work` throws AgreedErrors only.
bool Checkpointer::is_whole(const std::function<void()>& work) const {
  try {
    work();
    return true;
  } catch (const AgreedError& error) {
    if (error.code() != ExitCode::kData || !goes_on_) {
      throw;
    }
    if (job_.rank() == 0) {
      complain(str("passed over ", error.what()));
    }
    return false;
  }
}

// Collective. False for a damaged checkpoint that is passed over. A checkpoint of another model or
// with other settings is an error, which is found before anything is loaded.
bool Checkpointer::load(const std::string& checkpoint, Start& start) {
  RunState& state = start.state;
  std::optional<PieceSource> source;
  if (!is_whole([&] { source.emplace(open_checkpoint(job_, checkpoint, model_)); })) {
    return false;
  }
  open_bases(job_, *source, model_, config_.checkpoint.base);
  std::vector<Slab> slabs = weights_here(training_.store().values, model_);
  std::ranges::move(state_here(training_.store().shards, training_.optimizer()),
                    std::back_inserter(slabs));
  std::vector<CheckpointReader::Entry> tensors = source->reader().tensors();
  const auto is_outer = [](const auto& each) { return each.name.starts_with("optim/outer_m/"); };
  if (std::erase_if(tensors, is_outer) == 0) {
    std::erase_if(slabs, is_outer);  // of one island; several go on without momentum
  }
  agree(job_, [&] {
    const Manifest& written = source->reader().manifest();
    const Config then = config_of(source->reader());
    const int64_t vocab = dataset_.info().vocab_size;
    require_same_settings(checkpoint, then, config_, vocab);
    require_tensors(*source, slabs);
    state = RunState::read(written);
    require_same_data(checkpoint, written, manifest(state), dataset_.info());
    start.changes = all_changes(then, config_, vocab);
    if (written.format_version < Manifest::kFormatVersion && then.dist.reduce == Reduce::kExact &&
        std::ranges::any_of(parameters_of(model_), &Parameter::shared)) {
      start.changes.push_back("last bits of exact sums of the tied weight, since format 2");
    }
    if (const std::string plans = "\ngemm_plans = ";
        written.config.find(plans) != written.config.find(plans + "\n")) {
      start.changes.push_back("run.gemm_plans is ignored: products are measured");
    }
  });
  const auto load_all = [&] {
    require_known_slots(job_, checkpoint, mapped(tensors, &CheckpointReader::Entry::name), slabs);
    agree(job_, [&] {
      tandem::load(stream_, *source, slabs);
      load_exponents(state.exponents, training_);
    });
  };
  if (!is_whole(load_all)) {
    return false;
  }
  if (!config_.is_self_contained()) {
    refer_to(source->bases().empty() ? bases_of(*source) : source->bases());
  }
  training_.store().values.publish();
  const StepState step_state = state.step_state(training_.options());
  training_.record().restore(stream_, step_state);
  state.take(step_state, training_.options());
  return true;
}

void Checkpointer::load_weights_of(const std::string& checkpoint) {
  const std::unique_ptr<TensorSource> weights =
      open_weights(job_, checkpoint, model_, config_.checkpoint.base);
  agree(job_, [&] {
    std::vector<Slab> slabs = weights_here(training_.store().values, model_);
    Config then = config_;
    then.model = config_of(checkpoint).model;
    then.model.freeze = config_.model.freeze;
    const int64_t vocab = dataset_.info().vocab_size;
    if (then.model.lora.rank == 0) {
      std::erase_if(slabs, [](const Slab& slab) { return is_adapter(slab.name); });
      then.model.lora = config_.model.lora;
    } else {
      Config same = config_;
      same.model.lora = then.model.lora;
      require_same_settings(checkpoint, same, config_, vocab);
    }
    require_tensors(*weights, slabs);
    require_same_vocabulary(checkpoint, dataset_.info().path);
    // Where these three matter, shapes differ as well.
    require_same_settings(checkpoint, then, config_, vocab,
                          {"model.context", "model.positions", "model.vocab"});
    tandem::load(stream_, *weights, slabs);
  });
  if (!config_.is_self_contained()) {
    refer_to(bases_in(job_, *weights, model_));
  }
  training_.store().values.publish();
}

// Collective. What a run that was self-contained refers to from now on: checkpoint.init_from.
// AgreedError(kData) if its frozen weights are not those of the run.
std::vector<Manifest::Base> Checkpointer::bases_of(const PieceSource& whole) const {
  if (std::ranges::none_of(parameters_of(model_), &Parameter::frozen)) {
    return {};
  }
  const std::string folder =
      on_root(job_, [&] { return resolve_checkpoint(config_.checkpoint.init_from); });
  const auto weights = open_weights(job_, folder, model_, config_.checkpoint.base);
  std::vector<Manifest::Base> bases = bases_in(job_, *weights, model_);
  for (const Manifest::Base& base : bases) {
    if (hash_of_tensors(job_, whole, base.tensors, model_) != base.hash) {
      throw AgreedError(
          ExitCode::kData,
          str(base.path, " has other weights than the frozen ones of ", whole.reader().directory(),
              ", which cannot refer to them; set checkpoint.self_contained = true"));
    }
  }
  return bases;
}

// From now on checkpoints refer to these tensors.
void Checkpointer::refer_to(std::vector<Manifest::Base> bases) {
  bases_ = std::move(bases);
  std::set<std::string> elsewhere;
  for (const Manifest::Base& base : bases_) {
    elsewhere.insert(base.tensors.begin(), base.tensors.end());
  }
  snapshot_.leave_out(std::move(elsewhere));
}

void Checkpointer::begin(const RunState& state) {
  require(!attempt_, "Checkpointer::begin: the save before was not committed");
  saved_at_ = Clock::now();  // also if the save fails: the next attempt is due as late
  Attempt attempt;
  end_removal();
  attempt.partial = on_root(job_, [&] { return begin_checkpoint(checkpoints_, state.step); });
  attempt.manifest = manifest(state);
  attempt.former_step = newest_step_;
  std::span<const Slab> slabs;
  agree(job_, [&] { slabs = copy(); });
  const std::string path = attempt.partial + "/" + rank_file_name(job_.rank());
  const bool keeps_log = job_.rank() == 0;  // for a run that resumes
  attempt.written = std::async(std::launch::async, [this, path, slabs, keeps_log] {
    const ProfilerRange range("checkpoint writer");
    const Clock::time_point start = Clock::now();
    FileEntry file = write_rank_file(path, slabs);
    if (keeps_log) {
      RunDirectory(config_.run).sync_metrics();
    }
    return Written{std::move(file), std::chrono::duration<double>(Clock::now() - start).count()};
  });
  attempt_ = std::move(attempt);
  newest_step_ = state.step;
}

std::span<const Slab> Checkpointer::copy() {
  return snapshot_.take(training_.store(), training_.optimizer(), model_, job_.rank());
}

bool Checkpointer::is_written() const {
  return attempt_ &&
         attempt_->written.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

std::vector<double> Checkpointer::commit() {
  require(attempt_.has_value(), "Checkpointer::commit: no save has begun");
  Attempt attempt = std::move(*std::exchange(attempt_, std::nullopt));
  Written written;
  try {
    agree(job_, [&] { written = attempt.written.get(); });
    const std::vector<std::string> entries = job_.all_gather(written.file.text());
    path_ = on_root(job_, [&] {
      std::vector<FileEntry> files;
      std::ranges::transform(entries, std::back_inserter(files), FileEntry::from_text);
      const std::string committed = commit_checkpoint(attempt.partial, attempt.manifest, files);
      // Beside training: it takes almost a second for each gigabyte.
      removal_ = std::async(std::launch::async, [this, step = attempt.manifest.step] {
        keep_newest(checkpoints_, config_.checkpoint.keep, config_.checkpoint.keep_every, step);
      });
      return committed;
    });
  } catch (const AgreedError&) {
    abandon(attempt);
    throw;
  }
  if (attempt.is_best) {
    keep_as_best();
  }
  std::vector<double> seconds(static_cast<size_t>(job_.size()));
  seconds[static_cast<size_t>(job_.rank())] = written.seconds;
  return job_.sum(seconds);
}

void Checkpointer::end_removal() {
  if (removal_.valid()) {
    try {
      removal_.get();
    } catch (const std::exception& error) {
      complain(str("old checkpoints were not removed: ", error.what()));
    }
  }
}

// Removes what was written. If that fails, the next attempt does it.
void Checkpointer::abandon(const Attempt& attempt) {
  newest_step_ = attempt.former_step;
  if (job_.rank() == 0) {
    try {
      abandon_checkpoint(attempt.partial);
    } catch (const Error&) {  // the caller says what was wrong with the disk
    }
  }
}

void Checkpointer::keep_as_best() {
  if (attempt_) {
    attempt_->is_best = true;
    return;
  }
  on_root(job_, [&] {
    tandem::keep_as_best(checkpoints_, path_);
    return std::string();
  });
}

bool Checkpointer::overdue() const {
  const double minutes = config_.checkpoint.every_minutes;
  return minutes > 0 &&
         std::chrono::duration<double>(Clock::now() - saved_at_).count() >= 60 * minutes;
}

Manifest Checkpointer::manifest(RunState state) const {
  const int64_t samples = state.step * config_.train.global_batch;
  const int64_t epoch = dataset_.windows(Split::kTrain, config_.model->context());
  state.exponents = exponents_of(training_);
  Manifest manifest;
  manifest.config = config_.ini_text();
  manifest.sampler_epoch = samples / epoch;
  manifest.sampler_position = samples % epoch;
  manifest.data_hash = dataset_.info().content_hash;
  manifest.vocabulary_hash = vocabulary_hash_;
  manifest.seed = static_cast<uint64_t>(config_.run.seed);
  manifest.world_size = job_.size();
  manifest.bases = bases_;
  state.write(manifest);
  return manifest;
}

}  // namespace tandem
