// The checkpoints of a run: resuming from one, writing them while training goes on, and which are
// kept.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layers/models/model.h"
#include "src/data/dataset.h"
#include "src/machine/machine.h"
#include "src/settings/config.h"
#include "src/step/training_step.h"
#include "src/weights/piece_source.h"
#include "src/weights/run_state.h"
#include "src/weights/snapshot.h"

namespace tandem {

class Checkpointer {
 public:
  // The references must outlive this.
  Checkpointer(const Config& config, const Dataset& dataset, Machine& machine, Model& model,
               TrainingStep& training);

  struct Start {
    RunState state{};
    std::string resumed_from{};          // the checkpoint; empty for a new run
    std::vector<std::string> changes{};  // settings that differ from those of the checkpoint
    std::string weights_from{};  // of a new run: the checkpoint its weights come from, if any
  };
  // Collective. Loads what the settings say: the newest undamaged checkpoint of the run, a named
  // checkpoint, or only the weights of one. AgreedErrors: kData for a checkpoint that cannot be
  // read, kConfig for one that was written with other settings.
  Start resume();

  // A save has two halves, and training may go on between them. Both are collective. A failure of
  // either is an AgreedError; it ends this save and leaves the older checkpoints as they were.
  //
  // begin(): after step `state.step` has ended. Copies what each rank owns, and starts a thread
  // that writes it.
  void begin(const RunState& state);
  // Waits until every rank has written its file. Then rank 0 makes the checkpoint visible, and
  // starts to remove those that checkpoint.keep and keep_every do not cover. Returns how long each
  // rank wrote, in seconds.
  std::vector<double> commit();
  // Waits until they are removed. Where that fails a line says why, and they stay.
  void end_removal();
  bool is_writing() const { return attempt_.has_value(); }  // begun, not committed
  bool is_written() const;  // and this rank's file is done; does not block
  // Collective. Makes checkpoints/best the newest checkpoint, as soon as that is committed.
  void keep_as_best();

  // The run goes on from its own newest checkpoint: if checkpoint.resume is auto, or a folder and a
  // start with the same settings has saved since it began there (RunDirectory::has_saved).
  bool goes_on() const { return goes_on_; }
  // Of the newest checkpoint, which may still be under way; -1: none.
  int64_t newest_step() const { return newest_step_; }
  const std::string& path() const { return path_; }  // of the newest committed one, or empty
  int64_t copy_bytes() const { return snapshot_.host_bytes(); }
  // More than checkpoint.every_minutes have passed since the last save, by this rank's clock.
  bool overdue() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Written {
    FileEntry file;
    double seconds = 0;
  };
  struct Attempt {
    std::string partial;  // the directory
    Manifest manifest;
    int64_t former_step = -1;  // newest_step() before
    bool is_best = false;
    std::future<Written> written;  // of this rank; its destructor waits
  };

  std::vector<std::string> candidates() const;
  bool is_whole(const std::function<void()>& work) const;
  void repair_best(const RunState& state);
  bool load(const std::string& checkpoint, Start& start);
  void load_weights_of(const std::string& checkpoint);
  std::vector<Manifest::Base> bases_of(const PieceSource& whole) const;
  void refer_to(std::vector<Manifest::Base> bases);
  std::span<const Slab> copy();
  Manifest manifest(RunState state) const;
  void abandon(const Attempt& attempt);

  const Config& config_;
  const Dataset& dataset_;
  Control& job_;
  Stream& stream_;
  Model& model_;
  TrainingStep& training_;
  std::string checkpoints_;  // the directory
  std::string vocabulary_hash_;
  std::vector<Manifest::Base> bases_;  // of all checkpoints that this run saves
  bool goes_on_ = false;
  int64_t newest_step_ = -1;
  std::string path_;
  Clock::time_point saved_at_{};  // when the last save began, or the run
  std::future<void> removal_;     // of rank 0: of older checkpoints; its destructor waits
  Snapshot snapshot_;
  std::optional<Attempt> attempt_;  // destroyed before the snapshot, whose memory its thread reads
};

}  // namespace tandem
