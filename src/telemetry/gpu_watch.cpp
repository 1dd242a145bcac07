#include "src/telemetry/gpu_watch.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "src/core/error.h"
#include "src/core/visible_text.h"
#include "src/telemetry/nvml.h"

namespace tandem {

namespace {

// A wait in the library that is not longer lets the thread end in time.
constexpr std::chrono::milliseconds kLongestWait{100};
constexpr std::chrono::duration<double> kShortestHang{1};  // a busy machine may pause a thread

}  // namespace

struct GpuWatch::State {
  explicit State(const Options& given) : options(given), gpu(given.gpu) {}

  const Options options;
  // Nobody holds the mutex while the library is called.
  std::mutex mutex;
  std::condition_variable ended;
  bool shall_end = false, has_ended = false, has_hung = false;
  std::string gpu;                                 // its address, once it is known
  Clock::time_point answered = Clock::now();       // when a call of the library ended last
  std::optional<Clock::time_point> seen_silent{};  // by take(), until it answers
  GpuWindow window;

  // For the thread alone.
  std::set<std::string> warned{};  // kinds
  double xids = 0;
  std::optional<double> ecc_errors{};  // at the first sample

  void say(const std::string& what) const {
    complain(str("rank ", options.rank, " on ", options.host, ", GPU ", gpu, ": ", what));
  }
  void warn_once(const std::string& kind, const std::string& what) {
    if (warned.insert(kind).second) {
      say(what);
    }
  }

  void look(const NvmlGpu& nvml) {
    auto [sample, throttled_by] = nvml.sample();
    if (nvml.has_events()) {
      sample[GpuFigure::kXids] = xids;
    }
    if (!throttled_by.empty()) {
      warn_once("throttled", "its clock is held down by " + throttled_by);
    }
    if (const std::optional<double> errors = sample[GpuFigure::kEccErrors]) {
      ecc_errors = ecc_errors.value_or(*errors);
      if (*errors > *ecc_errors) {
        warn_once("ecc", "an ECC error of its memory was not corrected");
      }
    }
    const std::lock_guard lock(mutex);
    window.add(sample);
  }

  bool goes_on() {
    const std::lock_guard lock(mutex);
    answered = Clock::now();
    return !shall_end;
  }

  void watch() {
    bool has_gpu = false;
    try {
      NvmlGpu nvml(options.nvml, options.gpu);
      has_gpu = true;
      {
        const std::lock_guard lock(mutex);
        gpu = nvml.address();
      }
      for (Clock::time_point next = Clock::now(); goes_on();) {
        if (Clock::now() >= next) {
          look(nvml);
          next = Clock::now() + std::chrono::ceil<Clock::duration>(options.period);
        }
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
        if (const auto xid = nvml.wait_for_xid(std::clamp(left, {}, kLongestWait))) {
          ++xids;
          if (options.on_xid) {
            options.on_xid();
          }
          warn_once(str("Xid ", *xid),
                    str("the driver reports Xid ", *xid, "; NVIDIA's Xid catalog says what to do"));
        }
      }
    } catch (const std::exception& error) {
      if (has_gpu || options.says_why_not) {
        say(str("no figures: ", error.what()));
      }
    }
    const std::lock_guard lock(mutex);
    has_ended = true;
    ended.notify_all();
  }
};

GpuWatch::GpuWatch(const Options& options) : state_(std::make_shared<State>(options)) {
  std::thread([state = state_] { state->watch(); }).detach();
}

GpuWatch::~GpuWatch() {
  std::unique_lock lock(state_->mutex);
  state_->shall_end = true;
  const auto has_ended = [&] { return state_->has_ended; };
  if (!state_->ended.wait_until(lock, state_->answered + kLeave, has_ended)) {
    // What the library does when the process exits could wait for the call that hangs.
    on_exit(
        [](int status, void*) {
          std::fflush(nullptr);
          std::_Exit(status);
        },
        nullptr);
  }
}

const std::string& GpuWatch::gpu() const { return state_->options.gpu; }

std::optional<GpuUse> GpuWatch::take() {
  const std::lock_guard lock(state_->mutex);
  if (state_->has_ended) {
    return std::nullopt;
  }
  const Clock::time_point now = Clock::now();
  const std::chrono::duration<double> silent = now - state_->answered;
  const auto longest = std::max(10 * state_->options.period, kShortestHang);
  // After a pause of the whole machine the thread may answer yet, so silence must be seen twice.
  if (silent <= longest) {
    state_->seen_silent.reset();
  } else if (!state_->seen_silent) {
    state_->seen_silent = now;
  } else if (now - *state_->seen_silent > kShortestHang && !std::exchange(state_->has_hung, true)) {
    state_->say(str("NVML has not answered for ", std::lround(silent.count()),
                    " s; its figures are not known until it does, and training goes on"));
  }
  return state_->window.take();
}

namespace {

// The entry of a list such as "3,1", or the number itself without a list.
std::string visible_gpu(const char* list, int number) {
  std::istringstream in(list ? list : "");
  std::string entry = std::to_string(number);
  for (int i = 0; list && i <= number; ++i) {
    std::getline(in, entry, ',');
  }
  return entry;
}

}  // namespace

std::unique_ptr<GpuWatch> watch_gpu(double period_s, Device device, int rank, int local_rank,
                                    const std::string& host, std::function<void()> on_xid) {
  const char* library = std::getenv("TANDEM_NVML");
  std::string gpu = gpu_address(device);
  if (library && gpu.empty()) {
    gpu = visible_gpu(std::getenv("CUDA_VISIBLE_DEVICES"), local_rank);
  }
  if (period_s == 0 || gpu.empty()) {
    return nullptr;
  }
  GpuWatch::Options options{.gpu = gpu,
                            .period = std::chrono::duration<double>(period_s),
                            .rank = rank,
                            .host = host,
                            .says_why_not = local_rank == 0,
                            .on_xid = std::move(on_xid)};
  if (library) {
    options.nvml = library;
  }
  return std::make_unique<GpuWatch>(options);
}

}  // namespace tandem
