#include "src/train/checkpointer.h"

#include <cstdio>

#include "comm/agreement.h"
#include "src/train/run_directory.h"
#include "src/train/snapshot.h"
#include "src/train/trained_model.h"

namespace tandem {

namespace {

// The same shapes may belong to another model: 2 heads or 4, the first layers of a deeper one.
void require_same_settings(const std::string& checkpoint, const Config& then, const Config& now) {
  if (const std::string changes = changed_settings(then, now); !changes.empty()) {
    fail(ExitCode::kConfig, str(checkpoint, " was written with other settings:", changes));
  }
}

// What would change which samples belong to a step number.
void require_same_samples(const std::string& checkpoint, const Manifest& manifest,
                          const Config& now, const DatasetInfo& data) {
  const int64_t batch = config_of(checkpoint).train.global_batch;
  if (batch != now.train.global_batch) {
    fail(ExitCode::kConfig,
         str(checkpoint, " was written with train.global_batch = ", batch, ", now ",
             now.train.global_batch,
             ": samples would be repeated or left out; start a new run with checkpoint.init_from"));
  }
  if (manifest.data_hash != data.content_hash) {
    fail(ExitCode::kData, str(data.path, " is not the dataset that ", checkpoint,
                              " was trained on; put that one back, or start ",
                              "a new run with checkpoint.init_from"));
  }
}

}  // namespace

Checkpointer::Checkpointer(const Config& config, const Dataset& dataset, Machine& machine,
                           Model& model, TrainingStep& training)
    : config_(config),
      dataset_(dataset),
      comm_(machine.communicator()),
      stream_(machine.stream),
      model_(model),
      training_(training),
      checkpoints_(RunDirectory(config.run).checkpoints()) {}

Checkpointer::Start Checkpointer::resume() {
  Start start;
  start.state.take(first_state(training_.options()), training_.options());
  start.resumed_from = on_root(comm_, [&] { return checkpoint_to_resume(); });
  start.weights_from = on_root(
      comm_, [&] { return start.resumed_from.empty() ? weights_to_load() : std::string(); });
  agree(comm_, [&] {
    if (!start.resumed_from.empty()) {
      start.state = load(start.resumed_from);
    } else if (!start.weights_from.empty()) {
      load_weights_of(start.weights_from);
    }
  });
  if (!start.resumed_from.empty() || !start.weights_from.empty()) {
    training_.store().values.publish();
  }
  if (!start.resumed_from.empty()) {
    saved_step_ = start.state.step;
    path_ = start.resumed_from;
  }
  saved_at_ = Clock::now();
  return start;
}

// The folder to go on from, or nothing for a new run.
std::string Checkpointer::checkpoint_to_resume() const {
  const std::string& resume = config_.checkpoint.resume;
  const LatestCheckpoint latest = find_latest(checkpoints_, Verify::kHashes);
  for (const std::string& skipped : latest.skipped) {
    std::fprintf(stderr, "tandem: passed over %s\n", skipped.c_str());
  }
  if (resume == "auto") {
    if (latest.path.empty() && !latest.skipped.empty()) {
      fail(ExitCode::kData,
           str("run ", config_.run.name, ": none of its checkpoints can be used; repair one in ",
               checkpoints_, ", or start anew with checkpoint.resume = none"));
    }
    return latest.path;
  }
  if (resume != "none") {
    const std::string path = resolve_checkpoint(resume);
    read_manifest(path, Verify::kHashes);
    return path;
  }
  if (!latest.path.empty()) {
    fail(ExitCode::kConfig,
         str("run ", config_.run.name, " has checkpoints up to ", latest.path,
             "; checkpoint.resume = none would mix a new run with it; choose another run.name"));
  }
  return "";
}

std::string Checkpointer::weights_to_load() const {
  if (config_.checkpoint.init_from.empty()) {
    return "";
  }
  const std::string path = resolve_checkpoint(config_.checkpoint.init_from);
  read_manifest(path, Verify::kHashes);
  return path;
}

RunState Checkpointer::load(const std::string& checkpoint) {
  const CheckpointReader reader(checkpoint);
  load_weights(stream_, reader, training_.store().values, model_);
  load_optimizer(stream_, reader, training_.store().shards, training_.optimizer());
  require_same_settings(checkpoint, config_of(checkpoint), config_);
  require_same_samples(checkpoint, reader.manifest(), config_, dataset_.info());
  RunState state = RunState::read(reader.manifest());
  const StepState step_state = state.step_state(training_.options());
  training_.record().restore(stream_, step_state);
  load_exponents(state.exponents, training_);
  state.take(step_state, training_.options());
  return state;
}

void Checkpointer::load_weights_of(const std::string& checkpoint) {
  load_weights(stream_, CheckpointReader(checkpoint), training_.store().values, model_);
  Config then = config_of(checkpoint);
  then.data = config_.data;
  then.run = config_.run;
  then.model.freeze = config_.model.freeze;
  then.model.context = config_.model.context;  // where it matters, shapes differ
  require_same_settings(checkpoint, then, config_);
}

void Checkpointer::discard_after(int64_t step) const { tandem::discard_after(checkpoints_, step); }

void Checkpointer::save(const RunState& state) {
  const std::string partial =
      on_root(comm_, [&] { return begin_checkpoint(checkpoints_, state.step); });
  FileEntry entry;
  agree(comm_, [&] {
    entry = write_rank_file(
        partial + "/" + rank_file_name(comm_.rank()),
        owned_slabs(stream_, training_.store(), training_.optimizer(), model_, comm_.rank()));
  });
  const std::vector<std::string> entries = comm_.all_gather(entry.text());
  path_ = on_root(comm_, [&] {
    std::vector<FileEntry> files;
    for (const std::string& text : entries) {
      files.push_back(FileEntry::from_text(text));
    }
    const std::string committed = commit_checkpoint(partial, manifest(state), files);
    keep_newest(checkpoints_, config_.checkpoint.keep, state.step);
    return committed;
  });
  saved_step_ = state.step;
  saved_at_ = Clock::now();
}

void Checkpointer::keep_as_best() {
  on_root(comm_, [&] {
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
  const int64_t epoch = dataset_.windows(Split::kTrain, config_.model.context);
  state.exponents = exponents_of(training_);
  Manifest manifest;
  manifest.config = config_.ini_text();
  manifest.sampler_epoch = samples / epoch;
  manifest.sampler_position = samples % epoch;
  manifest.data_hash = dataset_.info().content_hash;
  manifest.seed = static_cast<uint64_t>(config_.run.seed);
  manifest.world_size = comm_.size();
  state.write(manifest);
  return manifest;
}

}  // namespace tandem
