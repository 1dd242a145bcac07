#include "src/report/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/core/visible_text.h"

namespace tandem {

namespace {

constexpr double kRedrawS = 0.1;
constexpr int kUnknownWidth = 80;
constexpr double kKeep = 0.98;  // weight of a step relative to the next step's, in TimeLeft

std::string format_loss(double loss) {
  const bool extreme = std::isfinite(loss) && loss != 0 && (std::abs(loss) < 1e-3 || loss >= 1e4);
  return str("loss ", formatted(extreme ? "%.3e" : "%.4f", loss));
}

std::string format_left(const ProgressView& view) {
  return view.seconds_left ? str("  ", format_duration(*view.seconds_left), " left") : "";
}

double steady_now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string format_count(double count, std::string_view separator) {
  constexpr std::array<const char*, 5> kSuffixes = {"", "k", "M", "G", "T"};
  size_t suffix = 0;
  // 999.5 would be printed as 1000.
  while (count >= 999.5 && suffix + 1 < kSuffixes.size()) {
    count /= 1000;
    ++suffix;
  }
  const char* format = count >= 99.95 || suffix == 0 ? "%.0f" : count >= 9.995 ? "%.1f" : "%.2f";
  if (suffix == 0 && count > 0 && count < 9.95) {
    format = "%.1f";
  }
  return str(formatted(format, count), separator, kSuffixes[suffix]);
}

std::string format_duration(double seconds) {
  if (!(seconds < 1e9)) {
    return "?";
  }
  const long long s = std::llround(std::max(seconds, 0.0));
  if (s < 60) {
    return formatted("%llds", s);
  }
  if (s < 3600) {
    return formatted("%lldm%02llds", s / 60, s % 60);
  }
  if (s < 86400) {
    return formatted("%lldh%02lldm", s / 3600, s / 60 % 60);
  }
  return formatted("%lldd%02lldh", s / 86400, s / 3600 % 24);
}

std::string format_bar(const ProgressView& view, int width) {
  const StepReport& report = view.report;
  const size_t room = static_cast<size_t>(std::max(width - 1, 0));
  const std::string step = str("step ", report.step, '/', view.steps);
  const std::string loss = str("  ", format_loss(report.loss));
  const std::string left = format_left(view);
  const bool trains = view.pause.empty();
  const std::string rate = str("  ", format_count(report.units_per_s), ' ', view.unit, "/s");
  const std::string third = trains ? left : str("  ", view.pause), fourth = trains ? rate : left;
  std::string text = step.substr(0, room);
  for (const std::string& part : {loss, third, fourth}) {
    if (text.size() + part.size() > room) {
      return text;
    }
    text += part;
  }
  text = step + loss + (trains ? rate + left : third + left);
  const double done =
      view.steps > 0
          ? std::clamp(static_cast<double>(report.step) / static_cast<double>(view.steps), 0.0, 1.0)
          : 0;
  const std::string percent = formatted(" %3d%%  ", static_cast<int>(done * 100));
  constexpr size_t kLongest = 30, kShortest = 5;
  const size_t around = percent.size() + 2;  // and the brackets
  if (text.size() + around + kShortest > room) {
    return text;
  }
  const size_t length = std::min(kLongest, room - text.size() - around);
  const auto filled = static_cast<size_t>(done * static_cast<double>(length));
  std::string bar(filled, '=');
  if (filled < length) {
    bar += '>';
    bar.append(length - filled - 1, ' ');
  }
  return str('[', bar, ']', percent, text);
}

std::string format_line(const ProgressView& view) {
  const StepReport& report = view.report;
  const std::string step = std::to_string(report.step), steps = std::to_string(view.steps);
  const std::string pad(steps.size() > step.size() ? steps.size() - step.size() : 0, ' ');
  return str("step ", pad, step, '/', steps, "  ", format_loss(report.loss), "  lr ",
             formatted("%.2e", report.lr), "  grad ", formatted("%.3g", report.grad_norm), "  ",
             format_count(report.units_per_s), ' ', view.unit, "/s  ",
             formatted("%.1f", report.step_s * 1e3), " ms/step", format_left(view));
}

void TimeLeft::add(int64_t step, double now_s) {
  if (step_ && step > *step_) {
    const double steps = static_cast<double>(step - *step_);
    const double keep = std::pow(kKeep, steps);
    const double gained = (1 - keep) / (1 - kKeep);  // 1 + kKeep + kKeep^2 ..., a term per step
    weighted_s_ = weighted_s_ * keep + gained * (now_s - now_s_ - last_pauses_s_) / steps;
    weight_ = weight_ * keep + gained;
  }
  first_step_ = step_ ? first_step_ : step;
  step_ = step;
  now_s_ = now_s;
  last_pauses_s_ = 0;
}

void TimeLeft::pause(double seconds) {
  pauses_s_ += seconds;
  last_pauses_s_ += seconds;
  paused_at_ = step_.value_or(0);
}

std::optional<double> TimeLeft::until(int64_t steps) const {
  if (weight_ == 0) {
    return std::nullopt;
  }
  const auto steps_left = static_cast<double>(std::max<int64_t>(steps - *step_, 0));
  const int64_t steps_before_pause = paused_at_ - first_step_;
  const double pauses_s =
      steps_before_pause > 0 ? pauses_s_ / static_cast<double>(steps_before_pause) : 0;
  return steps_left * (weighted_s_ / weight_ + pauses_s);
}

int terminal_width(std::FILE* file) {
  const char* terminal = std::getenv("TERM");
  if (::isatty(::fileno(file)) == 0 || (terminal != nullptr && std::string("dumb") == terminal)) {
    return 0;
  }
  // Under mpirun, standard output is always a terminal device. It has no width unless mpirun's own
  // output is a real terminal.
  winsize size{};
  return ::ioctl(::fileno(file), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

Console::Console(Options options, std::FILE* out, std::function<double()> now_s)
    : options_(std::move(options)), out_(out), now_s_(now_s ? std::move(now_s) : steady_now_s) {
  require(options_.log_every >= 1, "Console: log_every");
  if (options_.mode == ProgressMode::kAuto) {
    options_.mode = terminal_width(out_) > 0 ? ProgressMode::kBar : ProgressMode::kPlain;
  }
  view_.steps = options_.steps;
  view_.unit = options_.unit;
  time_left_.add(options_.first_step, now_s_());
}

Console::~Console() { clear_bar(); }

void Console::step(const StepReport& report) {
  const double now = now_s_();
  time_left_.add(report.step, now);
  view_.report = report;
  view_.seconds_left = time_left_.until(options_.steps);
  const bool is_last = report.step == options_.steps;
  if (options_.mode == ProgressMode::kBar &&
      (is_last || !bar_drawn_ || now - bar_drawn_s_ >= kRedrawS)) {
    draw_bar(now);
  }
  const bool is_due =
      options_.mode == ProgressMode::kPlain && report.step % options_.log_every == 0;
  if (is_due || (is_last && options_.mode != ProgressMode::kNone)) {
    print(format_line(view_));
  }
}

void Console::pause(std::string_view reason) {
  view_.pause = reason;
  paused_s_ = now_s_();
  if (bar_drawn_) {
    draw_bar(paused_s_);
  }
}

void Console::go_on() {
  const double now = now_s_();
  time_left_.pause(now - paused_s_);
  view_.pause.clear();
  view_.seconds_left = time_left_.until(options_.steps);
  if (bar_drawn_) {
    draw_bar(now);
  }
}

void Console::print(std::string_view text) {
  const bool redraw = bar_drawn_;
  clear_bar();
  write(visible(std::string(text), "\n") + "\n");
  if (redraw) {
    draw_bar(now_s_());
  }
}

void Console::clear_bar() {
  if (bar_drawn_) {
    write(to_start_of_bar() + "\033[K");  // erase to the end of the line
    bar_drawn_ = false;
  }
}

// Moves the cursor to the first column of the bar. A terminal that has become narrower since has
// broken the bar into several rows, which this erases.
std::string Console::to_start_of_bar() const {
  const int width = terminal_width(out_);
  const int rows = bar_drawn_ && width > 0 ? std::max(bar_columns_ - 1, 0) / width : 0;
  return rows > 0 ? str("\033[", rows, "A\r\033[J") : "\r";
}

void Console::draw_bar(double now_s) {
  const int width = terminal_width(out_);  // asked each time: windows change their size
  const std::string bar = format_bar(view_, width > 0 ? width : kUnknownWidth);
  write(str(to_start_of_bar(), bar, "\033[K"));
  bar_columns_ = static_cast<int>(bar.size());
  bar_drawn_ = true;
  bar_drawn_s_ = now_s;
}

void Console::write(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
}

}  // namespace tandem
