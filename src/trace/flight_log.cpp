#include "src/trace/flight_log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "src/core/error.h"
#include "src/core/formatted.h"
#include "src/device/profiler_range.h"
#include "src/trace/recorder.h"

namespace tandem {

namespace {

constexpr std::chrono::seconds kBeat{1};
constexpr int kBeatsPerWrite = 5;
constexpr double kStands_ns = 3e9;  // three beats: longer than a busy host takes
constexpr int64_t kKept_ns = 600'000'000'000;
constexpr const char* kShared = "/dev/shm";
constexpr const char* kPrefix = "tandem-flight-";
// To follow no link and wait for no pipe, from which pread() and to which pwrite() then fail.
constexpr int kOnlyFiles = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

template <size_t N>
void set(char (&place)[N], std::string_view text) {
  const size_t length = std::min(text.size(), N - 1);
  std::memcpy(place, text.data(), length);
  std::memset(place + length, 0, N - length);
}

// Memory of zeros that is there: a full file system cannot take it away later. Null where there is
// none.
FlightRecord* map_shared(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) {
    return nullptr;
  }
  void* memory = MAP_FAILED;
  if (posix_fallocate(file, 0, sizeof(FlightRecord)) == 0) {
    memory = mmap(nullptr, sizeof(FlightRecord), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  ::close(file);
  if (memory == MAP_FAILED) {
    unlink(path.c_str());
    return nullptr;
  }
  return static_cast<FlightRecord*>(memory);
}

// What dead processes of this user left in /dev/shm is removed at a later start. It stays for a
// while, because it says more about a job that has just died than the files in its folder.
void remove_remains(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& each : std::filesystem::directory_iterator(folder, ignored)) {
    FlightRecord record{};
    if (!each.path().filename().string().starts_with(kPrefix)) {
      continue;
    }
    if (read_begin(each.path(), &record, offsetof(FlightRecord, last)) &&
        flight_home() == record.home && record.beat < flight_now() - kKept_ns &&
        !std::filesystem::exists(str("/proc/", record.process))) {
      std::filesystem::remove(each.path(), ignored);
    }
  }
}

}  // namespace

bool read_begin(const std::string& path, void* to, size_t bytes) {
  const int file = open(path.c_str(), O_RDONLY | kOnlyFiles);
  const ssize_t count = file < 0 ? -1 : pread(file, to, bytes, 0);
  if (file >= 0) {
    ::close(file);
  }
  return count == static_cast<ssize_t>(bytes);
}

int64_t flight_now() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool moves_tensors(std::string_view kind) {
  return kind == "all_reduce" || kind == "reduce_scatter" || kind == "all_gather" ||
         kind == "all_to_all" || kind == "graph";
}

std::string FlightCollective::text() const {
  const std::string size =
      bytes < 1000 ? str(bytes, " bytes") : formatted("%.3g MB", static_cast<double>(bytes) * 1e-6);
  return str(kind, " ", number, " of ", ranks, " (", purpose, purpose[0] ? ", " : "", size,
             ") of step ", step);
}

std::string FlightCollective::time(int64_t now) const {
  // A damaged record may hold any number.
  const auto since = [](int64_t from, int64_t to) {
    return (static_cast<double>(to) - static_cast<double>(from)) * 1e-9;
  };
  return ended > 0 ? formatted("took %.3g ms", since(enqueued, ended) * 1e3)
                   : formatted("waits for %.1f s", since(enqueued, now));
}

std::string flight_home() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  std::error_code ignored;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

std::string flight_path(const std::string& folder, int rank) {
  char name[16] = {};
  std::snprintf(name, sizeof name, "/rank-%04d", rank);
  return folder + name;
}

std::string shared_flight_path(int64_t start, int rank) {
  return str(kShared, "/", kPrefix, start, "-", rank);
}

void FlightRecord::note_beat(int64_t now) {
  if (static_cast<double>(now) - static_cast<double>(beat) > kStands_ns) {
    stood_from = beat;
    stood_to = now;
  }
  beat = now;
}

FlightLog::FlightLog() : first_(new FlightRecord{}), record_(first_.get()) {
  record_->exit_code = kFlightRuns;
  enter("start-up");
}

void FlightLog::keep_in(const std::string& folder, int64_t start, int rank, int ranks,
                        const std::string& host) {
  close(ExitCode::kOk);
  folder_ = folder;
  record_->exit_code = kFlightRuns;
  std::memcpy(record_->magic, FlightRecord::kMagic, sizeof record_->magic);
  record_->start = start;
  record_->rank = rank;
  record_->ranks = ranks;
  record_->process = getpid();
  set(record_->host, host);
  set(record_->home, flight_home());
  remove_remains(kShared);
  shared_ = shared_flight_path(start, rank);
  if (FlightRecord* shared = map_shared(shared_)) {
    std::memcpy(shared, record_, sizeof *shared);
    record_ = shared;
  } else {
    shared_.clear();
  }
  ProfilerRange::listen([this, thread = std::this_thread::get_id()](const std::string& innermost) {
    if (std::this_thread::get_id() == thread) {
      set(record_->range, innermost);
      record_->range_since = flight_now();
    }
    recorder().enter_range(innermost);
  });
  record_->beat = flight_now();
  write();
  beating_ = std::jthread([this](const std::stop_token& stop) { beat(stop); });
}

void FlightLog::beat(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  for (int beats = 1; !stop.stop_requested(); ++beats) {
    stopped.wait_for(lock, stop, kBeat, [] { return false; });
    record_->note_beat(flight_now());
    if (beats % kBeatsPerWrite == 0) {
      write();
    }
  }
  record_->note_beat(flight_now());
}

// Says once that the file cannot be written, and tries again every time.
void FlightLog::write() {
  const std::string path = flight_path(folder_, record_->rank);
  if (file_ < 0) {
    std::error_code ignored;
    std::filesystem::create_directories(folder_, ignored);
    file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | kOnlyFiles, 0644);
  }
  const char* bytes = reinterpret_cast<const char*>(record_);
  ssize_t count = file_ < 0 ? -1 : 0;
  for (size_t done = 0; count >= 0 && done < sizeof *record_; done += static_cast<size_t>(count)) {
    count = pwrite(file_, bytes + done, sizeof *record_ - done, static_cast<off_t>(done));
  }
  if (count < 0 && !std::exchange(is_said_, true)) {
    std::fprintf(stderr, "tandem: not recorded: %s: cannot write: %s; training goes on\n",
                 path.c_str(), std::strerror(errno));
  }
}

void FlightLog::close(ExitCode code) {
  const std::lock_guard lock(mutex_);
  if (beating_.joinable()) {
    beating_.request_stop();
    beating_.join();  // after its last beat, which says whether the process stood still
    record_->exit_code = static_cast<int64_t>(code);
    write();
  }
  if (file_ >= 0) {
    ::close(std::exchange(file_, -1));
  }
  if (!shared_.empty()) {
    unlink(std::exchange(shared_, "").c_str());
  }
}

void FlightLog::enter(std::string_view part) {
  set(record_->part, part);
  record_->part_since = flight_now();
}

uint64_t FlightLog::open_group(const std::string& ranks) {
  const std::lock_guard lock(mutex_);
  return std::hash<std::string>{}(str(ranks, " ", ++groups_[ranks]));
}

uint64_t FlightLog::enqueue(uint64_t group, std::string_view ranks, int64_t number,
                            std::string_view kind, int64_t bytes) {
  const uint64_t count =
      std::atomic_ref(record_->collectives).fetch_add(1, std::memory_order_relaxed) + 1;
  FlightCollective& place = entry(count);
  place.number_before = count;
  place.group = group;
  place.number = number;
  place.bytes = bytes;
  place.step = record_->step;
  place.enqueued = flight_now();
  place.begun = place.ended = 0;
  set(place.kind, kind);
  set(place.purpose, ProfilerRange::innermost());
  set(place.ranks, ranks);
  place.number_after = count;
  if (moves_tensors(kind) && std::string_view(record_->part) != kPartElsewhere) {
    calls_.add(kind);
    calls_.add(bytes);
  }
  return count;
}

// The upper bits depend on all of the hash, the lower ones do not.
uint32_t FlightLog::take_calls() {
  return static_cast<uint32_t>(std::exchange(calls_, {}).value() >> (64 - kCallsBits));
}

void FlightLog::begin(uint64_t collective) {
  FlightCollective& place = entry(collective);
  if (place.number_before == collective) {
    place.begun = flight_now();
    traced_begin_[collective % FlightRecord::kCollectives] = trace_now();
  }
}

void FlightLog::end(uint64_t collective) {
  FlightCollective& place = entry(collective);
  if (place.number_before == collective) {
    place.ended = flight_now();
    if (place.begun > 0 && recorder().is_on()) {
      recorder().add(place, {traced_begin_[collective % FlightRecord::kCollectives], trace_now()});
    }
  }
}

// Never destroyed: the host's threads may note collectives until the end.
FlightLog& flight_log() {
  static auto& log = *new FlightLog;
  return log;
}

}  // namespace tandem
