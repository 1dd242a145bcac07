#include "src/trace/flight_verdict.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <thread>
#include <tuple>

#include "src/core/error.h"
#include "src/core/formatted.h"

namespace tandem {

namespace {

using Life = FlightRank::Life;

constexpr std::chrono::seconds kBetweenLooks{12};  // twice a write, and a bit
// In which a rank may take longer than others wait in a step (Phase).
constexpr std::string_view kPatientParts[] = {"start-up", "data", "saving", "elsewhere"};

// In ns. A damaged record may hold any times.
double passed(int64_t from, int64_t to) {
  return static_cast<double>(to) - static_cast<double>(from);
}

std::string seconds(int64_t from, int64_t to) {
  return formatted("%.0f s", std::max(passed(from, to), 0.0) * 1e-9);
}

// Whether a record was read whole; strings end.
bool read(const std::string& path, FlightRecord& record) {
  const bool is_whole = read_begin(path, &record, sizeof record);
  const auto end = [](auto& text) { text[sizeof text - 1] = 0; };
  end(record.host), end(record.home), end(record.part), end(record.range);
  for (FlightCollective& collective : record.last) {
    end(collective.kind), end(collective.purpose), end(collective.ranks);
  }
  return is_whole && std::memcmp(record.magic, FlightRecord::kMagic, sizeof record.magic) == 0;
}

Life life_here(int64_t process) {
  std::ifstream file(str("/proc/", process, "/stat"));
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  const char state = name_end + 2 < text.size() ? text[name_end + 2] : 'X';
  return state == 'T' || state == 't'            ? Life::kStopped
         : state == 'X' || state == 'Z' || !file ? Life::kGone
                                                 : Life::kRuns;
}

// "5 on node1 (process 4711)"
std::string name(const FlightRank& rank) {
  return str("rank ", rank.record.rank, " on ", rank.record.host, " (process ", rank.record.process,
             ")");
}

// "rank 3", "ranks 0-3, 7"
std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (size_t first = 0, last = 0; first < ranks.size(); first = last + 1) {
    for (last = first; last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1;) {
      ++last;
    }
    text += str(text.empty() ? "" : ", ", ranks[first]);
    text += last > first ? str(last > first + 1 ? "-" : ", ", ranks[last]) : "";
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

// Whether a process had stood still before its end, and did not then run for longer: it ended with
// code 75, or was killed.
bool stood_still(const FlightRecord& record) {
  constexpr double kSlack_ns = 5e9;
  const double stood = passed(record.stood_from, record.stood_to);
  return (record.exit_code == static_cast<int64_t>(ExitCode::kTemporary) ||
          record.exit_code == kFlightRuns) &&
         record.stood_to > 0 && passed(record.stood_to, record.beat) <= stood + kSlack_ns;
}

// A launcher wakes a process that stands still, to end it.
int64_t last_ran(const FlightRecord& record) {
  return stood_still(record) ? record.stood_from : record.beat;
}

// The rank that has not run for longest, or null if all run. A rank that came to its end is not
// lost: it ended with code 0, with the code of all others, or with 75, because it waited in vain.
// One that stood still before is the cause itself.
const FlightRank* first_lost(const std::vector<FlightRank>& ranks) {
  const auto ends_as_rank_0 = [&](const FlightRank& rank) {
    return rank.record.exit_code == ranks.front().record.exit_code;
  };
  const bool all_alike = std::ranges::all_of(ranks, ends_as_rank_0);
  const FlightRank* lost = nullptr;
  for (const FlightRank& rank : ranks) {
    const int64_t code = rank.record.exit_code;
    const bool ended =
        code == static_cast<int64_t>(ExitCode::kTemporary)
            ? !stood_still(rank.record)
            : code == static_cast<int64_t>(ExitCode::kOk) || (all_alike && code != kFlightRuns);
    if (rank.life != Life::kRuns && rank.life != Life::kUnknown && !ended &&
        (!lost || last_ran(rank.record) < last_ran(lost->record))) {
      lost = &rank;
    }
  }
  return lost;
}

// What all ranks know of the collective with one number in a group.
struct Meeting {
  std::vector<std::pair<const FlightRank*, FlightCollective>> came{};
  std::vector<const FlightRank*> missing{};
  std::optional<int64_t> waits_since{};  // the first that came and still waits
  bool runs = false;                     // on some rank, as far as is known
};

// Those that ended, too. By group and number.
std::vector<Meeting> meetings_of(const std::vector<FlightRank>& ranks) {
  std::map<std::pair<uint64_t, int64_t>, Meeting> all;
  std::map<uint64_t, std::map<const FlightRank*, int64_t>> newest;  // by group and member
  for (const FlightRank& rank : ranks) {
    for (const FlightCollective& c : rank.collectives()) {
      Meeting& meeting = all[{c.group, c.number}];
      meeting.came.emplace_back(&rank, c);
      if (c.ended == 0) {
        meeting.waits_since = std::min(meeting.waits_since.value_or(c.enqueued), c.enqueued);
        meeting.runs = meeting.runs || c.begun > 0;
      }
      int64_t& last = newest[c.group][&rank];
      last = std::max(last, c.number);
    }
  }
  std::vector<Meeting> meetings;
  for (auto& [key, meeting] : all) {
    for (const auto& [member, last] : newest[key.first]) {
      if (last < key.second) {
        meeting.missing.push_back(member);
      }
    }
    meetings.push_back(std::move(meeting));
  }
  return meetings;
}

// Those that a rank waits in, the longest first.
std::vector<Meeting> open_of(std::vector<Meeting> meetings) {
  std::erase_if(meetings, [](const Meeting& meeting) { return !meeting.waits_since; });
  std::ranges::sort(meetings, {}, &Meeting::waits_since);
  return meetings;
}

// A rank that runs again, but stood still for half of the time that others wait: a launcher wakes
// what it is about to end. Null if there is none.
const FlightRank* woken(const std::vector<FlightRank>& ranks, double waits_ns) {
  const auto stood_long = [&](const FlightRank& rank) {
    const FlightRecord& record = rank.record;
    return record.exit_code == kFlightRuns && stood_still(record) &&
           passed(record.stood_from, record.stood_to) >= waits_ns / 2;
  };
  const auto found = std::ranges::find_if(ranks, stood_long);
  return found != ranks.end() ? &*found : nullptr;
}

// What ranks called differently under one number, the first time; "" if nothing is known of it.
std::string difference_in(const std::vector<Meeting>& meetings) {
  std::string text;
  int64_t earliest = std::numeric_limits<int64_t>::max();
  for (const Meeting& meeting : meetings) {
    const auto& [first, wanted] = meeting.came.front();
    for (const auto& [other, called] : meeting.came) {
      const bool differs = std::strcmp(called.kind, wanted.kind) != 0 ||
                           (called.bytes != wanted.bytes && moves_tensors(wanted.kind));
      if (differs && called.enqueued < earliest) {
        earliest = called.enqueued;
        text = str("rank ", other->record.rank, " on ", other->record.host, " calls ",
                   called.text(), ", where rank ", first->record.rank, " calls ", wanted.text());
      }
    }
  }
  return text;
}

// The one of the open meetings that the others wait for: the oldest that runs, or that a rank is
// missing in. One that nobody saw begin may have ended: a host looks for the end of a collective of
// GPUs only when it waits for it. Where calls differ, one to which all came only ends.
const Meeting& cause_of(const std::vector<Meeting>& open, bool calls_differ = false) {
  const auto found = std::ranges::find_if(open, [&](const Meeting& meeting) {
    return (meeting.runs && !calls_differ) || !meeting.missing.empty();
  });
  return found != open.end() ? *found : open.front();
}

// The records of this job; none where it keeps none, or they cannot be read: what they would
// explain is said in any case.
std::vector<FlightRank> ranks_of_job(bool looks_twice) {
  const std::string folder = flight_log().folder();
  try {
    return folder.empty() ? std::vector<FlightRank>() : read_flight(folder, looks_twice);
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace

std::string FlightRank::state() const {
  constexpr const char* kStates[] = {"runs", "is stopped", "is gone", "is silent, or its host",
                                     "is on another host"};
  return record.exit_code == kFlightRuns ? kStates[static_cast<size_t>(life)]
         : stood_still(record)           ? "stood still, then ended"
                                         : str("ended with code ", record.exit_code);
}

std::string FlightRank::place(int64_t now) const {
  return record.range[0] ? str("in ", record.range, " for ", seconds(record.range_since, now))
                         : str("in ", record.part, " for ", seconds(record.part_since, now));
}

std::vector<FlightCollective> FlightRank::collectives(size_t most) const {
  std::vector<FlightCollective> all;
  for (const FlightCollective& collective : record.last) {
    if (collective.number_before > 0 && collective.number_before == collective.number_after) {
      all.push_back(collective);
    }
  }
  std::ranges::sort(all, {}, &FlightCollective::number_before);
  all.erase(all.begin(), all.end() - static_cast<int64_t>(std::min(all.size(), most)));
  return all;
}

std::vector<FlightRank> read_flight(const std::string& folder, bool looks_twice) {
  const std::string home = flight_home();
  std::map<int, FlightRank> found;
  for (const auto& each : std::filesystem::directory_iterator(folder)) {
    FlightRank rank{};
    if (!each.is_regular_file() || !read(each.path().string(), rank.record)) {
      fail_data(each.path().string(), ": it is no whole flight record; remove it");
    }
    if (home == rank.record.home) {
      rank.life = life_here(rank.record.process);
      FlightRecord shared;
      if (read(shared_flight_path(rank.record.start, rank.record.rank), shared)) {
        rank.record = shared;
        if (rank.life == Life::kRuns) {  // its thread may not have run since it was woken
          rank.record.note_beat(flight_now());
        }
      }
    }
    found.insert_or_assign(rank.record.rank, rank);
  }
  int64_t start = 0;
  for (const auto& [number, rank] : found) {
    start = std::max(start, rank.record.start);
  }
  std::vector<FlightRank> ranks;
  for (const auto& [number, rank] : found) {
    if (rank.record.start == start) {
      ranks.push_back(rank);
    }
  }
  const auto is_away = [](const FlightRank& rank) { return rank.life == Life::kUnknown; };
  if (looks_twice && std::ranges::any_of(ranks, is_away)) {
    std::this_thread::sleep_for(kBetweenLooks);
    std::vector<FlightRank> again = read_flight(folder, false);
    for (size_t i = 0; i < again.size() && again.size() == ranks.size(); ++i) {
      if (is_away(again[i])) {
        again[i].life = again[i].record.beat > ranks[i].record.beat ? Life::kRuns : Life::kSilent;
      }
    }
    return again;
  }
  return ranks;
}

std::string flight_verdict(const std::vector<FlightRank>& ranks, int64_t now, bool calls_differ) {
  if (const FlightRank* lost = first_lost(ranks)) {
    return str(name(*lost), " ", lost->state(), ", ",
               lost->place(lost->life == Life::kStopped ? now : lost->record.beat));
  }
  std::vector<Meeting> meetings = meetings_of(ranks);
  const std::string difference = difference_in(meetings);
  const std::vector<Meeting> open = open_of(std::move(meetings));
  if (!difference.empty() || open.empty()) {
    return difference;
  }
  const Meeting& longest = cause_of(open, calls_differ);
  if (const FlightRank* rank = woken(ranks, passed(*longest.waits_since, now))) {
    return str(name(*rank), " stood still for ",
               seconds(rank->record.stood_from, rank->record.stood_to), ", ", rank->place(now));
  }
  const FlightCollective& collective = longest.came.front().second;
  std::vector<int> waiting;
  for (const auto& [rank, called] : longest.came) {
    if (called.ended == 0) {
      waiting.push_back(rank->record.rank);
    }
  }
  const std::string waits = str(list(waiting), waiting.size() == 1 ? " waits for " : " wait for ",
                                seconds(*longest.waits_since, now));
  if (longest.missing.empty()) {
    return str("all ranks came to ", collective.text(), ", in which ", waits,
               ": look at the link between them");
  }
  const FlightRank& missing = *longest.missing.front();
  return str("rank ", missing.record.rank, " on ", missing.record.host, " did not join ",
             collective.text(), ", in which ", waits, ": it is ", missing.place(now));
}

JobVerdict flight_verdict_of_job(bool calls_differ) {
  const std::vector<FlightRank> ranks = ranks_of_job(true);
  const std::string verdict = flight_verdict(ranks, flight_now(), calls_differ);
  if (verdict.empty()) {
    return {};
  }
  return {.text = "; " + verdict,
          .code = verdict == difference_in(meetings_of(ranks)) ? ExitCode::kInternal
                                                               : ExitCode::kTemporary};
}

LateRank late_rank_of_job() {
  const std::vector<FlightRank> ranks = ranks_of_job(false);
  const std::vector<Meeting> open = open_of(meetings_of(ranks));
  if (first_lost(ranks) || open.empty() || cause_of(open).missing.empty()) {
    return {};
  }
  const Meeting& cause = cause_of(open);
  const FlightRank& missing = *cause.missing.front();
  if (std::ranges::count(kPatientParts, std::string_view(missing.record.part)) == 0) {
    return {};
  }
  return {.text = str("rank ", missing.record.rank, " on ", missing.record.host, ", which is ",
                      missing.place(flight_now())),
          .is_said_here = cause.came.front().first->record.rank == flight_log().rank()};
}

}  // namespace tandem
