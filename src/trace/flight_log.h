// What a process of a job does, in memory that outlives it: its step, what it works on, and its
// last collectives. Other ranks read it when they wait in vain, and `tandem inspect --flight` shows
// it.
//
// Writing is a few plain stores: no lock and no system call. An entry has its number at both ends,
// so that one which was only half written shows. Until keep_in() the record is ordinary memory.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>

#include "src/core/error.h"
#include "src/core/hash.h"

namespace tandem {

// Times are nanoseconds since 1970 by the host's clock; 0: not yet.
struct FlightCollective {
  uint64_t number_before;  // counts this process' collectives, from 1
  uint64_t group;          // FlightLog::open_group
  int64_t number;          // among those of the group, from 1
  int64_t bytes;
  int64_t step;
  int64_t enqueued, begun, ended;
  char kind[24];     // "all_reduce"
  char purpose[40];  // "bucket 3": the innermost ProfilerRange of the caller
  char ranks[40];    // "ranks 1, 3", or "this run"
  uint64_t number_after;

  // "all_reduce 1234 of this run (bucket 3, 25 MB) of step 412"
  std::string text() const;
  // "took 1.2 ms", "waits for 5.0 s" at the time `now`
  std::string time(int64_t now) const;
};

int64_t flight_now();  // by the host's clock

// Whether collectives of this kind pass tensors on; those of the others are control messages, whose
// sizes may differ between ranks.
bool moves_tensors(std::string_view kind);
// The part of a run that belongs to no step.
inline constexpr std::string_view kPartElsewhere = "elsewhere";

inline constexpr int64_t kFlightRuns = -1;

// The record of one rank as it lies in memory and in its file.
struct FlightRecord {
  static constexpr char kMagic[8] = {'T', 'A', 'N', 'D', 'E', 'M', 'F', '1'};
  static constexpr size_t kCollectives = 1024;  // the last ones

  char magic[8];
  int64_t start;  // of the run, the same on all ranks
  int32_t rank, ranks;
  int64_t process;    // number, as its host counts
  int64_t exit_code;  // an ExitCode; kFlightRuns before the end
  char host[64];
  char home[96];  // flight_home()
  int64_t beat;   // when its thread last ran
  int64_t step;   // that it computes
  char part[32];  // of a step or a run (Phase), and since when
  int64_t part_since;
  char range[64];  // the innermost ProfilerRange of the main thread, or "", and since when
  int64_t range_since;
  int64_t stood_from, stood_to;  // when the process last stood still for several beats
  uint64_t collectives;          // so far
  FlightCollective last[kCollectives];

  // Its thread runs, at the time `now`.
  void note_beat(int64_t now);
};
static_assert(std::is_trivially_copyable_v<FlightRecord>);

class FlightLog {
 public:
  FlightLog();
  FlightLog(const FlightLog&) = delete;

  // From now on the record lies in /dev/shm, where it outlives the process, and a thread writes it
  // to FOLDER/rank-0000 every 5 s; it beats every second. A file that cannot be written costs one
  // line on stderr. The calling thread is the one whose ranges are noted. `start`: the same on all
  // ranks, another one for each start of a run. Closes the record before, if there is one.
  void keep_in(const std::string& folder, int64_t start, int rank, int ranks,
               const std::string& host);
  // The folder of keep_in(), or "".
  const std::string& folder() const { return folder_; }
  // Writes the file once more, with how the process ends, and removes what is in /dev/shm.
  void close(ExitCode code);

  int rank() const { return record_->rank; }

  void set_step(int64_t step) { record_->step = step; }
  void enter(std::string_view part);

  // A name for the collectives of one communicator. All ranks of a group open it in the same order
  // among the groups of these ranks.
  uint64_t open_group(const std::string& ranks);
  // Notes a collective; returns its number for begin() and end(), which may come from any thread.
  uint64_t enqueue(uint64_t group, std::string_view ranks, int64_t number, std::string_view kind,
                   int64_t bytes);
  void begin(uint64_t collective);
  void end(uint64_t collective);
  FlightCollective& entry(uint64_t collective) {
    return record_->last[collective % FlightRecord::kCollectives];
  }
  // What this rank did with tensors since the last call, in kCallsBits bits: a hash of the kinds
  // and the bytes of the collectives, in order. All of these come from the calling thread. What is
  // elsewhere does not count: in a validation the batches of two groups may differ in size.
  uint32_t take_calls();
  static constexpr int kCallsBits = 20;

 private:
  void beat(const std::stop_token& stop);
  void write();

  std::unique_ptr<FlightRecord> first_;  // until keep_in(); a thread may still write there later
  FlightRecord* record_;
  std::string folder_, shared_;  // shared_: the file in /dev/shm, or ""
  int file_ = -1;
  bool is_said_ = false;  // that the file cannot be written
  std::mutex mutex_;      // of groups_ and close()
  std::map<std::string, int> groups_;
  Fnv1a<uint64_t> calls_;
  std::array<int64_t, FlightRecord::kCollectives> traced_begin_{};  // by the clock of traces
  std::jthread beating_;
};

// An id of where processes have these numbers: the host since it was switched on, and the
// container.
std::string flight_home();

// Whether the first `bytes` of a file were read. Follows no link and waits for no pipe.
bool read_begin(const std::string& path, void* to, size_t bytes);

// Where a rank's record lies: in the run's folder for flight records, and on its host.
std::string flight_path(const std::string& folder, int rank);  // FOLDER/rank-0000
std::string shared_flight_path(int64_t start, int rank);

// That of this process.
FlightLog& flight_log();

}  // namespace tandem
