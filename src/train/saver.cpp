#include "src/train/saver.h"

#include <utility>

#include "src/core/visible_text.h"
#include "src/device/ranks/agreement.h"
#include "src/io/checkpoint/checkpoint.h"

namespace tandem {

Saver::Saver(const Config& config, const Dataset& dataset, Machine& machine, Model& model,
             TrainingStep& training, const RunDirectory& directory, StopSignal& stop,
             RunState& state, LeaveOut leave_out)
    : config_(config.checkpoint),
      directory_(directory),
      job_(machine.mesh()->job()),
      stop_(stop),
      state_(state),
      leave_out_(std::move(leave_out)),
      checkpointer_(config, dataset, machine, model, training) {}

Checkpointer::Start Saver::resume() {
  Checkpointer::Start start = checkpointer_.resume();
  state_ = start.state;
  best_saved_ = state_.best_val_loss;
  stop_.set_last_checkpoint(last_checkpoint());
  return start;
}

void Saver::save(bool is_best) {
  const bool was_tried = saving_.step == state_.step && !finishing_;
  if (is_saved() || was_tried) {
    return;
  }
  commit();
  saving_ = state_;
  stall_s_ = 0;
  tolerate([&] { checkpointer_.begin(saving_); });
  if (is_best && checkpointer_.is_writing()) {
    checkpointer_.keep_as_best();
  }
  if (!config_.async) {
    commit();
  }
}

void Saver::after_validation() {
  const bool is_best = *state_.val_loss < state_.best_val_loss;
  if (is_best) {
    state_.best_val_loss = *state_.val_loss;
  }
  if (is_saved()) {
    leave_out_([&] {
      note_validation();
      if (is_best) {
        checkpointer_.keep_as_best();
      }
    });
  } else if (is_best) {
    save(true);
  }
}

void Saver::note_validation() {
  on_root(job_, [&] {
    directory_.require_in_place();
    directory_.sync_metrics();
    Manifest manifest = read_manifest(last_checkpoint());
    RunState saved = RunState::read(manifest);
    saved.val_loss = state_.val_loss;
    saved.best_val_loss = state_.best_val_loss;
    saved.write(manifest);
    replace_manifest(last_checkpoint(), manifest);
    return std::string();
  });
}

void Saver::commit() {
  if (!checkpointer_.is_writing()) {
    return;
  }
  std::vector<double> write_s;
  tolerate([&] { write_s = checkpointer_.commit(); });
  if (!write_s.empty()) {
    failed_saves_ = 0;
    best_saved_ = saving_.best_val_loss;
    stop_.set_last_checkpoint(last_checkpoint());
    if (log_) {
      log_->saved(saving_.step,
                  {.stall_s = stall_s_, .write_s = write_s, .steps = state_.step - saving_.step});
    }
  }
}

void Saver::finish() {
  commit();
  leave_out_([this] { checkpointer_.end_removal(); });
}

// If saving fails because of the disk, training goes on, and the next checkpoint is tried when it
// is due. The third failure in a row, or one of the last save, ends the run.
void Saver::tolerate(const std::function<void()>& saving) {
  constexpr int kMostFailures = 3;
  directory_.require_in_place();
  stall_s_ += leave_out_([&] {
    try {
      saving();
    } catch (const AgreedError& error) {
      directory_.require_in_place();
      const bool last = finishing_ && saving_.step == state_.step;
      if (error.code() != ExitCode::kData || last || ++failed_saves_ == kMostFailures) {
        throw;
      }
      if (log_) {
        complain(str("not saved: ", error.what(),
                     "; training goes on, last checkpoint: ", last_checkpoint()));
      }
      if (state_.best_val_loss == saving_.best_val_loss) {
        state_.best_val_loss = best_saved_;  // no checkpoint has the weights of a better one
      }
    }
  });
}

}  // namespace tandem
