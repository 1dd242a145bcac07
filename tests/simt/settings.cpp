#include "tests/simt/settings.h"

#include <cstdlib>

#include "tests/simt/simt.h"

namespace simt {

namespace {

const char* variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0 ? value : otherwise;
}

// Reads the seed of "shuffled:7"; false if `schedule` has another form.
bool is_shuffled(std::string_view schedule, uint64_t& seed) {
  constexpr std::string_view kPrefix = "shuffled:";
  if (!schedule.starts_with(kPrefix)) {
    return false;
  }
  seed = std::strtoull(std::string(schedule.substr(kPrefix.size())).c_str(), nullptr, 0);
  return true;
}

void parse_threads(Settings& settings, std::string_view schedule) {
  if (is_shuffled(schedule, settings.thread_seed)) {
    settings.threads = ThreadOrder::kShuffled;
  } else if (schedule == "forward") {
    settings.threads = ThreadOrder::kForward;
  } else if (schedule == "backward") {
    settings.threads = ThreadOrder::kBackward;
  } else {
    fail("unknown thread schedule", std::string(schedule));
  }
}

void parse_streams(Settings& settings, std::string_view schedule) {
  if (is_shuffled(schedule, settings.stream_seed)) {
    settings.streams = StreamOrder::kShuffled;
  } else if (schedule == "in-order") {
    settings.streams = StreamOrder::kInOrder;
  } else if (schedule == "compute-late") {
    settings.streams = StreamOrder::kComputeLate;
  } else if (schedule == "comm-late") {
    settings.streams = StreamOrder::kCommLate;
  } else {
    fail("unknown stream schedule", std::string(schedule));
  }
}

// Whether `value` is `yes`; it must be that or `no`.
bool parse_choice(const char* what, std::string_view value, const char* yes, const char* no) {
  if (value != yes && value != no) {
    fail(std::string("unknown ") + what, std::string(value));
  }
  return value == yes;
}

void parse_copies(Settings& settings, std::string_view schedule) {
  settings.late_copies = parse_choice("schedule of copies", schedule, "late", "at-once");
}

void parse_sums(Settings& settings, std::string_view rounding) {
  settings.truncate_sums = parse_choice("rounding of mma", rounding, "truncate", "nearest");
}

}  // namespace

Settings::Settings() {
  parse_threads(*this, variable("TANDEM_SIMT_THREADS", "forward"));
  parse_streams(*this, variable("TANDEM_SIMT_STREAMS", "in-order"));
  parse_copies(*this, variable("TANDEM_SIMT_COPIES", "late"));
  parse_sums(*this, variable("TANDEM_SIMT_MMA", "nearest"));
  poison = static_cast<uint8_t>(std::strtoul(variable("TANDEM_SIMT_POISON", "0xff"), nullptr, 0));
  protect = std::string_view(variable("TANDEM_SIMT_PROTECT", "0")) != "0";
  const std::string_view gpus = variable("TANDEM_SIMT_DEVICES", "8");
  ready = gpus != "not-ready";
  devices = std::atoi(gpus.data());
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible && devices > 0) {
    devices = *visible ? 1 : 0;
    first_device = std::atoi(visible);
  }
  capability = std::atoi(variable("TANDEM_SIMT_CAPABILITY", "80"));
  shared = std::strtoull(variable("TANDEM_SIMT_SHARED", "166912"), nullptr, 0);
  memory = std::strtoull(variable("TANDEM_SIMT_MEMORY", "42949672960"), nullptr, 0);
  pinned = std::strtoull(variable("TANDEM_SIMT_PINNED", "0"), nullptr, 0);
  coverage = variable("TANDEM_SIMT_COVERAGE", "");
  launches = variable("TANDEM_SIMT_LAUNCHES", "");
  graphs = variable("TANDEM_SIMT_GRAPHS", "");
}

Settings& settings() {
  static Settings* settings = new Settings;  // outlives every thread
  return *settings;
}

void set_thread_schedule(std::string_view schedule) { parse_threads(settings(), schedule); }
void set_stream_schedule(std::string_view schedule) { parse_streams(settings(), schedule); }
void set_copy_schedule(std::string_view schedule) { parse_copies(settings(), schedule); }
void set_mma_rounding(std::string_view rounding) { parse_sums(settings(), rounding); }
void set_poison(uint8_t byte) { settings().poison = byte; }

std::string disagreement(const std::function<Bytes()>& run) {
  const Settings before = settings();
  const Bytes expected = run();
  std::string first;
  const auto compare = [&](const std::string& name) {
    if (first.empty() && run() != expected) {
      first = name;
    }
    settings() = before;
  };
  for (const char* schedule : {"forward", "backward", "shuffled:1", "shuffled:2", "shuffled:3"}) {
    set_thread_schedule(schedule);
    compare(std::string("threads=") + schedule);
  }
  for (const char* schedule :
       {"in-order", "compute-late", "comm-late", "shuffled:1", "shuffled:2", "shuffled:3"}) {
    set_stream_schedule(schedule);
    compare(std::string("streams=") + schedule);
  }
  for (const char* schedule : {"late", "at-once"}) {
    set_copy_schedule(schedule);
    compare(std::string("copies=") + schedule);
  }
  for (const uint8_t byte : {uint8_t{0xff}, uint8_t{0x3c}}) {
    set_poison(byte);
    compare("poison=" + std::to_string(byte));
  }
  return first;
}

uint64_t Random::operator()() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace simt
