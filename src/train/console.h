// Progress as a person sees it: one line that is redrawn on a terminal, plain lines in a log.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace tandem {

// What is known of a run between two steps.
struct Progress {
  int64_t step = 0, steps = 0;
  double loss = 0;
  double units_per_s = 0;       // 0: not known yet
  std::string unit = "tokens";  // or "images"
  double seconds_left = -1;     // negative: not known yet
};

std::string format_duration(double seconds);  // "42s", "3m05s", "2h07m", "4d03h"
std::string format_rate(double units_per_s);  // "950", "12.3k", "4.56M"
std::string plain_line(const Progress& progress);
// At most `width` columns.
std::string bar_line(const Progress& progress, int width);

class Console {
 public:
  // mode: auto (a bar on a terminal, otherwise plain), bar, plain or none.
  Console(const std::string& mode, std::FILE* out);
  ~Console();  // clears the bar
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void update(
      const Progress& progress);  // after every step: redraws the bar at most ten times a second
  void logged(const Progress& progress);  // at logged steps: the plain line, or a redraw
  void say(const std::string& line);      // a whole line, above the bar

 private:
  void redraw();
  void clear();

  enum class Mode : uint8_t { kBar, kPlain, kNone } mode_;
  std::FILE* out_;
  bool drawn_ = false;
  Progress latest_;
  std::chrono::steady_clock::time_point last_draw_{};
};

}  // namespace tandem
