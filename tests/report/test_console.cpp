#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "src/report/console.h"

namespace tandem {
namespace {

ProgressView view_of(int64_t step) {
  return {.report = {.step = step,
                     .loss = 1.93123,
                     .lr = 9.1e-4,
                     .grad_norm = 0.5312,
                     .step_s = 0.0241,
                     .units_per_s = 41234},
          .steps = 2000,
          .unit = "tokens",
          .seconds_left = 83};
}

TEST(Console, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(0.25), "0.2");
  EXPECT_EQ(format_count(9.5), "9.5");
  EXPECT_EQ(format_count(312), "312");
  EXPECT_EQ(format_count(999.4), "999");
  EXPECT_EQ(format_count(999.6), "1.00k");
  EXPECT_EQ(format_count(41234), "41.2k");
  EXPECT_EQ(format_count(412345), "412k");
  EXPECT_EQ(format_count(1.05e6), "1.05M");
  EXPECT_EQ(format_count(2e15), "2000T");
}

TEST(Console, Durations) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(-1), "0s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(83), "1m23s");
  EXPECT_EQ(format_duration(3599.7), "1h00m");
  EXPECT_EQ(format_duration(7500), "2h05m");
  EXPECT_EQ(format_duration(86400 * 3 + 3600 * 4.5), "3d04h");
  EXPECT_EQ(format_duration(std::nan("")), "?");
  EXPECT_EQ(format_duration(INFINITY), "?");
}

TEST(Console, LineHasEverything) {
  EXPECT_EQ(format_line(view_of(500)),
            "step  500/2000  loss 1.9312  lr 9.10e-04  grad 0.531  41.2k tokens/s  24.1 ms/step  "
            "1m23s left");
  ProgressView view = view_of(2000);
  view.seconds_left.reset();
  view.report.loss = std::nan("");
  EXPECT_EQ(format_line(view),
            "step 2000/2000  loss nan  lr 9.10e-04  grad 0.531  41.2k tokens/s  24.1 ms/step");
}

TEST(Console, BarTakesWhatFits) {
  const std::string text = "step 500/2000  loss 1.9312  41.2k tokens/s  1m23s left";  // 54 columns
  EXPECT_EQ(format_bar(view_of(500), 200), "[=======>" + std::string(22, ' ') + "]  25%  " + text);
  EXPECT_EQ(format_bar(view_of(500), 80), "[====>" + std::string(11, ' ') + "]  25%  " + text);
  EXPECT_EQ(format_bar(view_of(500), 69), "[=>   ]  25%  " + text);
  EXPECT_EQ(format_bar(view_of(500), 68), text);
  EXPECT_EQ(format_bar(view_of(500), 55), text);
  EXPECT_EQ(format_bar(view_of(500), 54), "step 500/2000  loss 1.9312  1m23s left");
  EXPECT_EQ(format_bar(view_of(500), 38), "step 500/2000  loss 1.9312");
  EXPECT_EQ(format_bar(view_of(500), 26), "step 500/2000");
  EXPECT_EQ(format_bar(view_of(500), 6), "step ");
  EXPECT_EQ(format_bar(view_of(500), 0), "");
}

TEST(Console, BarSaysWhatHoldsUpTraining) {
  ProgressView view = view_of(500);
  view.pause = "validating";
  const std::string text = "step 500/2000  loss 1.9312  validating  1m23s left";  // 50 columns
  EXPECT_EQ(format_bar(view, 200), "[=======>" + std::string(22, ' ') + "]  25%  " + text);
  EXPECT_EQ(format_bar(view, 51), text);
  EXPECT_EQ(format_bar(view, 50), "step 500/2000  loss 1.9312  validating");
  EXPECT_EQ(format_bar(view, 38), "step 500/2000  loss 1.9312");
}

TEST(Console, BarNeverReachesTheLastColumn) {
  for (int width = 1; width < 150; ++width) {
    for (const int64_t step : {0, 1, 1999, 2000, 2500}) {
      EXPECT_LT(format_bar(view_of(step), width).size(), static_cast<size_t>(width));
    }
  }
}

TEST(Console, BarIsFullAtTheEnd) {
  EXPECT_EQ(format_bar(view_of(2000), 200).substr(0, 40), "[" + std::string(30, '=') + "] 100%  s");
  EXPECT_EQ(format_bar(view_of(1999), 200).substr(0, 40),
            "[" + std::string(29, '=') + ">]  99%  s");
}

TEST(Console, TimeLeftIsExactForEvenSteps) {
  TimeLeft time;
  EXPECT_FALSE(time.until(100).has_value());
  time.add(20, 1000);  // a resumed run
  EXPECT_FALSE(time.until(100).has_value());
  time.add(21, 1000.5);
  EXPECT_DOUBLE_EQ(*time.until(100), 39.5);
  time.add(30, 1005);  // nine steps at once
  EXPECT_DOUBLE_EQ(*time.until(100), 35);
  EXPECT_DOUBLE_EQ(*time.until(30), 0);
  EXPECT_DOUBLE_EQ(*time.until(10), 0);
}

// One step that takes twenty times as long moves the mean from 1 to 1.38 (19 times its weight of
// 2 %). After 200 ordinary steps, 2 % of this change are left (0.98^200).
TEST(Console, TimeLeftIsSmooth) {
  TimeLeft time;
  double now = 0;
  for (int64_t step = 0; step <= 1000; ++step) {
    time.add(step, now);
    now += 1;
  }
  time.add(1001, now + 19);
  EXPECT_NEAR(*time.until(1002), 1.38, 1e-6);
  time.add(1201, now + 219);
  EXPECT_NEAR(*time.until(1202), 1 + 0.38 * std::pow(0.98, 200), 1e-6);
}

// A validation of 10 s after every 100 steps of 0.5 s.
TEST(Console, TimeLeftCountsPauses) {
  TimeLeft time;
  time.add(20, 1000);  // a resumed run
  time.pause(3);       // before any step: says nothing of how often it comes
  time.add(21, 1003.5);
  EXPECT_DOUBLE_EQ(*time.until(31), 5);
  TimeLeft fresh;
  fresh.add(0, 0);
  double now = 0;
  for (int64_t step = 1; step <= 300; ++step) {
    now += 0.5;
    if (step % 100 == 1 && step > 1) {
      now += 10;
      fresh.pause(10);
    }
    fresh.add(step, now);
  }
  // At step 300 there were two pauses, after step 200. The steps are even, so only roundings
  // differ.
  EXPECT_NEAR(*fresh.until(1000), 700 * (0.5 + 20.0 / 200), 1e-9);
}

// Records what a Console writes; its clock is set by hand.
class Recorder {
 public:
  explicit Recorder(Console::Options options)
      : file_(open_memstream(&text_, &size_)),
        console_(std::make_unique<Console>(options, file_, [this] { return now_s_; })) {}
  ~Recorder() {
    console_.reset();
    std::fclose(file_);
    std::free(text_);
  }
  Console& console() { return *console_; }
  void end() { console_.reset(); }
  void wait(double seconds) { now_s_ += seconds; }
  std::string take() {
    std::string fresh(text_ + taken_, size_ - taken_);
    taken_ = size_;
    return fresh;
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0, taken_ = 0;
  std::FILE* file_;
  double now_s_ = 100;
  std::unique_ptr<Console> console_;
};

StepReport report_of(int64_t step) { return view_of(step).report; }

TEST(Console, PlainLinesEveryFewSteps) {
  Recorder recorder({.mode = ProgressMode::kPlain, .steps = 25, .log_every = 10});
  for (int64_t step = 1; step <= 25; ++step) {
    recorder.wait(1);
    recorder.console().step(report_of(step));
    const std::string text = recorder.take();
    if (step % 10 == 0 || step == 25) {
      EXPECT_NE(text.find("step " + std::to_string(step) + "/25  "), std::string::npos) << text;
      EXPECT_NE(text.find(std::to_string(25 - step) + "s left\n"), std::string::npos) << text;
    } else {
      EXPECT_EQ(text, "");
    }
  }
  recorder.console().print("val_loss 1.5");
  EXPECT_EQ(recorder.take(), "val_loss 1.5\n");
  recorder.end();
  EXPECT_EQ(recorder.take(), "");
}

TEST(Console, BarIsRedrawnTenTimesASecondAtMost) {
  Recorder recorder({.mode = ProgressMode::kBar, .steps = 1'000'000});
  int drawn = 0;
  for (int64_t step = 1; step <= 1000; ++step) {  // two seconds
    recorder.wait(0.002);
    recorder.console().step(report_of(step));
    const std::string text = recorder.take();
    if (!text.empty()) {
      ++drawn;
      EXPECT_EQ(text.front(), '\r');
      EXPECT_EQ(text.substr(text.size() - 3), "\033[K");
      EXPECT_EQ(text.find('\n'), std::string::npos);
    }
  }
  EXPECT_GE(drawn, 18);
  EXPECT_LE(drawn, 21);
}

TEST(Console, BarMakesRoomForLinesAndGoesAway) {
  Recorder recorder({.mode = ProgressMode::kBar, .steps = 25});
  recorder.console().print("before");
  EXPECT_EQ(recorder.take(), "before\n");
  recorder.console().step(report_of(1));
  const std::string bar = recorder.take();
  recorder.console().print("val_loss 1.5");
  EXPECT_EQ(recorder.take(), "\r\033[Kval_loss 1.5\n" + bar);
  recorder.console().step(report_of(2));  // too early to be drawn
  EXPECT_EQ(recorder.take(), "");
  recorder.console().step(report_of(25));  // drawn at once, and a line above the bar
  const std::string last = recorder.take();
  const size_t line = last.find("\r\033[Kstep 25/25  loss 1.9312  lr 9.10e-04  grad 0.531  ");
  ASSERT_NE(line, std::string::npos) << last;
  EXPECT_EQ(last.substr(last.find('\n', line) + 1), last.substr(0, line));
}

TEST(Console, APauseIsShownAtOnce) {
  Recorder recorder({.mode = ProgressMode::kBar, .steps = 25});
  recorder.console().step(report_of(1));
  EXPECT_EQ(recorder.take().find("validating"), std::string::npos);
  recorder.console().pause("validating");
  EXPECT_NE(recorder.take().find("loss 1.9312  validating"), std::string::npos);
  recorder.wait(5);
  recorder.console().go_on();
  EXPECT_EQ(recorder.take().find("validating"), std::string::npos);
  Recorder plain({.mode = ProgressMode::kPlain, .steps = 25});
  plain.console().pause("validating");
  plain.console().go_on();
  EXPECT_EQ(plain.take(), "");
}

// An exception unwinds the Console: the message that follows must begin on a clean line.
TEST(Console, DestructionClearsTheBar) {
  Recorder recorder({.mode = ProgressMode::kBar, .steps = 25});
  recorder.console().step(report_of(1));
  recorder.take();
  recorder.end();
  EXPECT_EQ(recorder.take(), "\r\033[K");
}

TEST(Console, NoneShowsOnlyWhatIsPrinted) {
  Recorder recorder({.mode = ProgressMode::kNone, .steps = 25, .log_every = 1});
  recorder.console().step(report_of(1));
  recorder.console().step(report_of(25));
  recorder.console().print("val_loss 1.5");
  EXPECT_EQ(recorder.take(), "val_loss 1.5\n");
}

TEST(Console, AutoIsPlainWithoutATerminal) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(terminal_width(file), 0);
  {
    Console console({.steps = 25, .log_every = 1}, file);
    console.step(report_of(1));
  }
  EXPECT_GT(std::ftell(file), 0);
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) {
    EXPECT_NE(c, '\r');
  }
  std::fclose(file);
}

// A terminal that becomes narrower breaks the bar into rows: the next bar begins where it began.
TEST(Console, ABarThatANarrowerTerminalBrokeIsErased) {
  setenv("TERM", "xterm", 1);
  int controller = -1, terminal = -1;
  winsize size{};
  size.ws_row = 24;
  size.ws_col = 100;
  ASSERT_EQ(openpty(&controller, &terminal, nullptr, nullptr, &size), 0);
  std::FILE* file = fdopen(terminal, "w");
  double now_s = 100;
  const auto read = [&] {
    char text[4096];
    const ssize_t count = ::read(controller, text, sizeof text);
    return std::string(text, static_cast<size_t>(std::max<ssize_t>(count, 0)));
  };
  {
    Console console({.mode = ProgressMode::kBar, .steps = 2000}, file, [&] { return now_s; });
    console.step(report_of(500));
    const std::string bar = read();
    EXPECT_TRUE(bar.starts_with("\r[")) << bar;
    size.ws_col = 40;
    ASSERT_EQ(ioctl(controller, TIOCSWINSZ, &size), 0);
    now_s += 1;
    console.step(report_of(501));
    // 91 columns and more of the bar fill three rows of 40.
    EXPECT_TRUE(read().starts_with("\033[2A\r\033[Jstep 501/2000  loss 1.9312")) << bar.size();
    now_s += 1;
    console.step(report_of(502));
    EXPECT_TRUE(read().starts_with("\rstep 502/2000"));
  }
  read();
  std::fclose(file);
  ::close(controller);
}

// mpirun gives its ranks a pseudo-terminal without a size when its own output is redirected.
TEST(Console, ATerminalHasAWidth) {
  setenv("TERM", "xterm", 1);
  for (const int columns : {0, 91}) {
    int controller = -1, terminal = -1;
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    ASSERT_EQ(openpty(&controller, &terminal, nullptr, nullptr, &size), 0);
    std::FILE* file = fdopen(terminal, "w");
    EXPECT_EQ(terminal_width(file), columns);
    setenv("TERM", "dumb", 1);
    EXPECT_EQ(terminal_width(file), 0);
    setenv("TERM", "xterm", 1);
    std::fclose(file);
    ::close(controller);
  }
}

}  // namespace
}  // namespace tandem
