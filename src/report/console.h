// What a person sees while training: a progress bar on a terminal, plain lines in a log.
//
// Created on rank 0 only. Formatting is done by pure functions; Console decides when to draw, and
// keeps other output apart from the bar.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "src/core/error.h"
#include "src/settings/config.h"

namespace tandem {

// The figures of one update.
struct StepReport {
  int64_t step = 0;  // updates done, this one included
  double loss = 0;
  double lr = 0;
  double grad_norm = 0;
  double step_s = 0;       // seconds this update took
  double units_per_s = 0;  // tokens or images
};

// What one bar or line shows.
struct ProgressView {
  StepReport report;
  int64_t steps = 0;      // of the whole run
  std::string_view unit;  // "tokens" or "images"
  std::optional<double> seconds_left;
  std::string pause{};  // what holds up training: "validating"; empty: nothing
};

// Three digits: "987", "41.2k", "1.05M". `separator` is put between the number and its letter.
std::string format_count(double count, std::string_view separator = "");
std::string format_duration(double seconds);  // "0s", "42s", "1m23s", "2h05m", "3d04h"

// One line that is shorter than `width` columns, because terminals wrap at the last column. On a
// narrow terminal, what fits is taken in this order: step, loss, pause, time left, rate, bar.
//     [=====>              ]  25%  step 500/2000  loss 1.9312  41.2k tokens/s  1m23s left
//     [=====>              ]  25%  step 500/2000  loss 1.9312  validating  1m23s left
std::string format_bar(const ProgressView& view, int width);

//     step  500/2000  loss 1.9312  lr 9.10e-04  grad 0.53  41.2k tokens/s  24.1 ms/step  1m23s left
std::string format_line(const ProgressView& view);

// Predicts the time to the end of a run from the mean time of a step. In this mean, the weight of a
// step falls by 2 % with each later step, so that the prediction follows changes without jumping.
// Pauses, such as validations, come on top: as much a step as there was up to the last one.
class TimeLeft {
 public:
  // `step` updates are done at the time `now_s`, in seconds since any fixed time. The first call
  // marks the start.
  void add(int64_t step, double now_s);
  // Training stood still for so long since the last add(), for another reason than a step.
  void pause(double seconds);
  // Seconds until `steps` updates are done; empty before the second add().
  std::optional<double> until(int64_t steps) const;

 private:
  std::optional<int64_t> step_;
  double now_s_ = 0;
  double weighted_s_ = 0;  // sum of weight * seconds of a step
  double weight_ = 0;
  int64_t first_step_ = 0, paused_at_ = 0;  // paused_at_: the step before the last pause
  double pauses_s_ = 0;                     // of all
  double last_pauses_s_ = 0;                // since the last add()
};

// Columns of the terminal that `file` writes to; 0 when `file` is no terminal.
int terminal_width(std::FILE* file);

class Console {
 public:
  struct Options {
    ProgressMode mode = ProgressMode::kAuto;
    int64_t first_step = 0;  // updates that were done before this run of the program
    int64_t steps = 0;
    int64_t log_every = 10;  // steps between two plain lines
    std::string unit = "tokens";
  };
  // now_s: a clock in seconds, for tests; null: the steady clock.
  explicit Console(Options options, std::FILE* out = stdout,
                   std::function<double()> now_s = nullptr);
  ~Console();  // erases the bar
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Shows an update. Call it after each update. The last one of the run always has a line.
  void step(const StepReport& report);
  // Training stands still for this reason ("validating"), until go_on().
  void pause(std::string_view reason);
  void go_on();
  // Writes `text`, which has no newline at its end, as a line of its own, in every mode.
  void print(std::string_view text);
  template <class... Args>
  requires(sizeof...(Args) > 1) void print(const Args&... text) { print(str(text...)); }

 private:
  void clear_bar();
  std::string to_start_of_bar() const;
  void draw_bar(double now_s);
  void write(std::string_view text);

  Options options_;
  std::FILE* out_;
  std::function<double()> now_s_;
  TimeLeft time_left_;
  ProgressView view_;
  bool bar_drawn_ = false;
  double bar_drawn_s_ = 0;
  int bar_columns_ = 0;
  double paused_s_ = 0;  // when the pause began
};

}  // namespace tandem
