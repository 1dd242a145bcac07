// The parts of the trainer that begin and keep a run: resuming, saving, and the table at the start.
#include <cmath>
#include <cstdio>

#include "comm/agreement.h"
#include "src/train/snapshot.h"
#include "src/train/trained_model.h"
#include "src/train/trainer.h"

namespace tandem {

namespace {

// The same shapes may belong to another model: 2 heads or 4, the first layers of a deeper one.
void require_same_settings(const std::string& checkpoint, const Config& then, const Config& now) {
  if (const std::string changes = changed_settings(then, now); !changes.empty()) {
    fail(ExitCode::kConfig, str(checkpoint, " was written with other settings:", changes));
  }
}

// What would change the order of samples behind a step number.
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

// "4 ranks, 2 on each node; ZeRO stage 2 over all ranks; ring sums"
std::string sharing(const DistConfig& dist, const Hierarchy& ranks) {
  const int size = ranks.world().size(), node = ranks.node_size();
  std::string text = str(size, size == 1 ? " rank" : " ranks");
  if (node != size) {
    text += node > 0 ? str(", ", node, " on each node") : ", nodes of different sizes";
  }
  if (ranks.parts() > 1) {
    text += str("; ZeRO stage ", dist.zero);
    if (dist.zero > 0) {
      text += ranks.replicas() > 1 ? " inside a node" : " over all ranks";
    }
  }
  return text + (dist.reduce == "exact"      ? "; exact sums"
                 : dist.wire_dtype == "bf16" ? "; ring sums, bf16 on the wire"
                                             : "; ring sums");
}

}  // namespace

void Trainer::resume() {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  const std::string found = on_root(comm_, [&] { return checkpoint_to_resume(); });
  const std::string weights = on_root(comm_, [&] {
    if (!found.empty() || checkpoint.init_from.empty()) {
      return std::string();
    }
    const std::string path = resolve_checkpoint(checkpoint.init_from);
    read_manifest(path, Verify::kHashes);
    return path;
  });
  agree(comm_, [&] {
    if (!found.empty()) {
      const CheckpointReader reader(found);
      load_weights(stream_, reader, training_->store().values, *model_);
      load_optimizer(stream_, reader, training_->store().shards, training_->optimizer());
      require_same_settings(found, config_of(found), config_);
      const Manifest& manifest = reader.manifest();
      require_same_samples(found, manifest, config_, dataset_->info());
      step_ = last_saved_ = manifest.step;
      restore_state(manifest);
      if (const auto best = manifest.schedule.find("best_val_loss");
          best != manifest.schedule.end()) {
        best_val_loss_ = best->second;
      }
    } else if (!weights.empty()) {
      load_weights(stream_, CheckpointReader(weights), training_->store().values, *model_);
      Config then = config_of(weights);
      then.data = config_.data;
      then.run = config_.run;
      then.model.freeze = config_.model.freeze;
      then.model.context = config_.model.context;  // where it matters, shapes differ
      require_same_settings(weights, then, config_);
    }
  });
  if (!found.empty() || !weights.empty()) {
    training_->store().values.publish();
  }
  last_checkpoint_ = found;
  agree(comm_, [&] {
    if (comm_.rank() == 0) {
      directory_.keep_tokenizer(config_);
      discard_after(directory_.checkpoints(), step_);
      log_ = std::make_unique<RunLog>(config_, directory_, step_, dataset_->info());
      log_->start(summary(), found, weights);
      stop_signal_.set_last_checkpoint(found.empty() ? "none yet" : found);
    }
  });
}

// The folder to go on from, or nothing for a new run.
std::string Trainer::checkpoint_to_resume() const {
  const std::string& resume = config_.checkpoint.resume;
  const LatestCheckpoint latest = find_latest(directory_.checkpoints(), Verify::kHashes);
  for (const std::string& skipped : latest.skipped) {
    std::fprintf(stderr, "tandem: passed over %s\n", skipped.c_str());
  }
  if (resume == "auto") {
    if (latest.path.empty() && !latest.skipped.empty()) {
      fail(ExitCode::kData,
           str("run ", config_.run.name, ": none of its checkpoints can be used; repair one in ",
               directory_.checkpoints(), ", or start anew with checkpoint.resume = none"));
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

RunSummary Trainer::summary() const {
  RunSummary summary{.parameters = parameter_count(*model_),
                     .flops_per_sample = model_->flops_per_sample(),
                     .peak_flops = peak_flops_,
                     .ranks = comm_.size(),
                     .machine = machine_.description(),
                     .sharing = sharing(config_.dist, *machine_.ranks()),
                     .micro_batch = micro_batch(),
                     .accumulation = accumulation(),
                     .buckets = static_cast<int64_t>(training_->store().layout.buckets()),
                     .gradient_bytes = training_->store().gradients.bytes(),
                     .samples_per_epoch = dataset_->windows(Split::kTrain, config_.model.context),
                     .memory = ""};
  for (MemoryClass memory_class : {MemoryClass::kParameters, MemoryClass::kGradients,
                                   MemoryClass::kMasters, MemoryClass::kOptimizer}) {
    if (memory_.use(memory_class).bytes == 0) {
      continue;
    }
    summary.memory += str(summary.memory.empty() ? "" : ", ", name_of(memory_class), " ",
                          format_bytes(memory_.use(memory_class).bytes));
  }
  return summary;
}

// Where the update rule, the loss scale and the exponents of exact sums stood.
void Trainer::restore_state(const Manifest& manifest) {
  const auto value = [&](const std::string& name, double otherwise) {
    const auto found = manifest.schedule.find(name);
    return found == manifest.schedule.end() ? otherwise : found->second;
  };
  const StepOptions& options = training_->options();
  state_.skipped = static_cast<int64_t>(manifest.schedule.at("skipped_steps"));
  state_.updates = manifest.step - state_.skipped;
  if (options.dynamic_scale) {
    state_.loss_scale = static_cast<float>(value("loss_scale", options.initial_scale));
    state_.clean_steps = static_cast<int64_t>(value("clean_steps", 0));
  }
  training_->record().restore(stream_, state_);
  for (const auto& [sums, name] : exact_sums()) {
    std::vector<int32_t> exponents = sums->exponents();
    for (size_t i = 0; i < exponents.size(); ++i) {
      exponents[i] = static_cast<int32_t>(value(name(i), exponents[i]));
    }
    sums->set_exponents(std::move(exponents));
  }
}

// Where sums are exact: whose exponents a checkpoint keeps, and under which names.
std::vector<std::pair<ExactSums*, std::function<std::string(size_t)>>> Trainer::exact_sums() const {
  std::vector<std::pair<ExactSums*, std::function<std::string(size_t)>>> all;
  if (ExactSums* sums = training_->store().gradients.exact()) {
    all.emplace_back(sums, [this](size_t i) {
      return "exponent/param/" + training_->store().layout.parameters()[i]->name;
    });
  }
  if (ExactSums* sums = training_->statistics().exact()) {
    all.emplace_back(sums, [](size_t i) { return str("exponent/stat/", i); });
  }
  return all;
}

// All ranks write; rank 0 commits once every file is whole. A failure leaves the older checkpoints
// as they were. A step that is saved for several reasons (due, best, last) is written once.
void Trainer::save() {
  if (last_saved_ == step_) {
    return;
  }
  settle();
  const auto start = std::chrono::steady_clock::now();
  const std::string partial =
      on_root(comm_, [&] { return begin_checkpoint(directory_.checkpoints(), step_); });
  FileEntry entry;
  agree(comm_, [&] {
    entry = write_rank_file(
        partial + "/" + rank_file_name(comm_.rank()),
        owned_slabs(stream_, training_->store(), training_->optimizer(), *model_, comm_.rank()));
  });
  const std::vector<std::string> entries = comm_.all_gather(entry.text());
  last_checkpoint_ = on_root(comm_, [&] {
    std::vector<FileEntry> files;
    for (const std::string& text : entries) {
      files.push_back(FileEntry::from_text(text));
    }
    const std::string committed = commit_checkpoint(partial, manifest(), files);
    keep_newest(directory_.checkpoints(), config_.checkpoint.keep, step_);
    return committed;
  });
  last_saved_ = step_;
  stop_signal_.set_last_checkpoint(last_checkpoint_);
  last_save_time_ = std::chrono::steady_clock::now();
  window_start_ += last_save_time_ - start;
}

Manifest Trainer::manifest() const {
  const int64_t samples = step_ * config_.train.global_batch;
  const int64_t epoch = dataset_->windows(Split::kTrain, config_.model.context);
  Manifest manifest;
  manifest.config = config_.ini_text();
  manifest.step = step_;
  manifest.sampler_epoch = samples / epoch;
  manifest.sampler_position = samples % epoch;
  manifest.data_hash = dataset_->info().content_hash;
  manifest.seed = static_cast<uint64_t>(config_.run.seed);
  manifest.schedule = {{"skipped_steps", static_cast<double>(state_.skipped)}};
  for (const auto& [sums, name] : exact_sums()) {
    for (size_t i = 0; i < sums->exponents().size(); ++i) {
      manifest.schedule[name(i)] = sums->exponents()[i];
    }
  }
  if (training_->options().dynamic_scale) {
    manifest.schedule["loss_scale"] = state_.loss_scale;
    manifest.schedule["clean_steps"] = static_cast<double>(state_.clean_steps);
  }
  if (std::isfinite(best_val_loss_)) {
    manifest.schedule["best_val_loss"] = best_val_loss_;
  }
  manifest.world_size = comm_.size();
  manifest.validation_loss = val_loss_;
  return manifest;
}

}  // namespace tandem
