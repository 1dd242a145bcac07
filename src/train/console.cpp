#include "src/train/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "src/core/error.h"

namespace tandem {

namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[160];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

int terminal_width(std::FILE* out) {
  winsize size{};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string figures(const Progress& p) {
  std::string text = format("loss %.4f", p.loss);
  if (p.units_per_s > 0) {
    text += "  " + format_rate(p.units_per_s) + " " + p.unit + "/s";
  }
  if (p.seconds_left >= 0) {
    text += "  " + format_duration(p.seconds_left) + " left";
  }
  return text;
}

}  // namespace

std::string format_duration(double seconds) {
  const auto s = static_cast<long>(std::lround(seconds));
  if (s < 60) {
    return format("%lds", s);
  }
  if (s < 3600) {
    return format("%ldm%02lds", s / 60, s % 60);
  }
  if (s < 86400) {
    return format("%ldh%02ldm", s / 3600, s / 60 % 60);
  }
  return format("%ldd%02ldh", s / 86400, s / 3600 % 24);
}

std::string format_rate(double units_per_s) {
  if (units_per_s < 1000) {
    return format("%.0f", units_per_s);
  }
  return units_per_s < 1e6 ? format("%.1fk", units_per_s / 1e3)
                           : format("%.2fM", units_per_s / 1e6);
}

std::string plain_line(const Progress& p) {
  return str("step ", p.step, "/", p.steps, "  ", figures(p));
}

std::string bar_line(const Progress& p, int width) {
  const std::string left = str("step ", p.step, "/", p.steps, " ");
  const std::string right = " " + figures(p);
  const int room = width - static_cast<int>(left.size() + right.size()) - 2;
  std::string bar;
  if (room >= 5) {
    const int cells = std::min(room, 30);
    const int filled = p.steps > 0 ? static_cast<int>(cells * p.step / p.steps) : 0;
    bar = "[" + std::string(static_cast<size_t>(filled), '=') +
          std::string(static_cast<size_t>(cells - filled), ' ') + "]";
  }
  return (left + bar + right).substr(0, static_cast<size_t>(std::max(width, 0)));
}

Console::Console(const std::string& mode, std::FILE* out)
    : mode_(mode == "none"                                             ? Mode::kNone
            : mode == "bar" || (mode == "auto" && isatty(fileno(out))) ? Mode::kBar
                                                                       : Mode::kPlain),
      out_(out) {}

Console::~Console() { clear(); }

void Console::update(const Progress& progress) {
  latest_ = progress;
  const auto now = std::chrono::steady_clock::now();
  if (mode_ == Mode::kBar && now - last_draw_ >= std::chrono::milliseconds(100)) {
    last_draw_ = now;
    redraw();
  }
}

void Console::logged(const Progress& progress) {
  latest_ = progress;
  if (mode_ == Mode::kBar) {
    redraw();
  } else if (mode_ == Mode::kPlain) {
    std::fprintf(out_, "%s\n", plain_line(progress).c_str());
    std::fflush(out_);
  }
}

void Console::say(const std::string& line) {
  if (mode_ == Mode::kNone) {
    return;
  }
  const bool redraw_after = drawn_;
  clear();
  std::fprintf(out_, "%s\n", line.c_str());
  if (redraw_after) {
    redraw();
  }
  std::fflush(out_);
}

void Console::redraw() {
  // One column stays free: a full line would wrap on some terminals.
  std::fprintf(out_, "\r\x1b[K%s", bar_line(latest_, terminal_width(out_) - 1).c_str());
  std::fflush(out_);
  drawn_ = true;
}

void Console::clear() {
  if (drawn_) {
    std::fputs("\r\x1b[K", out_);
    std::fflush(out_);
    drawn_ = false;
  }
}

}  // namespace tandem
