#include "src/report/trace/chrome_trace.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/error.h"
#include "src/core/visible_text.h"
#include "src/io/byte_stream.h"
#include "src/io/file.h"
#include "src/trace/flight_log.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

// Tracks of a process; each group of ranks and each thread of the host has one behind these.
constexpr int kSteps = 0, kCompute = 1, kControl = 2, kFirstOther = 3;

bool is_computing(Phase phase) { return phase == Phase::kCompute || phase == Phase::kOptimizer; }

std::string name_of(const Trace::Piece& piece) {
  const bool waits = piece.phase == Phase::kCommunication || piece.phase == Phase::kData ||
                     piece.phase == Phase::kCopy;
  return waits || piece.range.empty() ? std::string(name_of(piece.phase)) : piece.range;
}

// Events of one rank, whose times begin at `base`.
class Events {
 public:
  Events(const Trace& trace, int64_t base, std::function<int64_t(int64_t)> clock)
      : trace_(trace), base_(base), clock_(std::move(clock)) {
    meta("process_name", 0, str("rank ", trace.rank, " on ", visible(trace.host)));
    meta("thread_name", kSteps, "steps");
    meta("thread_name", kCompute, "compute");
    meta("thread_name", kControl, "control messages");
  }

  void slice(std::string_view category, const std::string& name, int track, TraceSpan span,
             Json args) {
    const int64_t begin = clock_(span.begin);
    add("X", name, track, begin,
        {{"dur", microseconds(std::max<int64_t>(clock_(span.end) - begin, 0))},
         {"cat", category},
         {"args", std::move(args)}});
  }
  // An end of an arrow, in the slice that is there at the time.
  void arrow(bool begins, const std::string& id, int track, int64_t at) {
    Json more = {{"cat", "collective"}, {"id", id}};
    if (!begins) {
      more["bp"] = "e";
    }
    add(begins ? "s" : "f", "collective", track, at, std::move(more));
  }
  void memory(const Trace::MemoryUse& use) {
    add("C", "memory", kSteps, clock_(use.at), {{"args", {{"bytes", use.bytes}}}});
  }
  // The track of a group or a thread.
  int track_of(const std::string& id, const std::string& name) {
    const auto [place, is_new] = tracks_.emplace(id, kFirstOther + std::ssize(tracks_));
    if (is_new) {
      meta("thread_name", static_cast<int>(place->second), name);
    }
    return static_cast<int>(place->second);
  }

  int64_t by_clock(int64_t time) const { return clock_(time); }
  std::vector<Json>& all() { return all_; }

 private:
  double microseconds(int64_t ns) const { return static_cast<double>(ns) * 1e-3; }
  void add(const char* kind, const std::string& name, int track, int64_t at, Json more) {
    Json event = {{"ph", kind},
                  {"name", name},
                  {"pid", trace_.rank},
                  {"tid", track},
                  {"ts", microseconds(at - base_)}};
    event.update(more);
    all_.push_back(std::move(event));
  }
  void meta(const char* what, int track, const std::string& name) {
    all_.push_back({{"ph", "M"},
                    {"name", what},
                    {"pid", trace_.rank},
                    {"tid", track},
                    {"args", {{"name", name}}}});
  }

  const Trace& trace_;
  int64_t base_;
  std::function<int64_t(int64_t)> clock_;
  std::map<std::string, int64_t> tracks_;
  std::vector<Json> all_;
};

std::string id_of(const Trace::Collective& collective) {
  return str(collective.group, "-", collective.number);
}

int track_of(const Trace::Collective& collective, Events& events) {
  return moves_tensors(collective.kind)
             ? events.track_of(str(collective.group), "collectives of " + collective.ranks)
             : kControl;
}

// `for_tools`: with the names that they know.
void add_all(const Trace& trace, bool for_tools, Events& events) {
  for (const Trace::Step& step : trace.steps) {
    Json parts;
    for (size_t i = 0; i < kPhases; ++i) {
      parts[name_of(static_cast<Phase>(i))] = step.parts[i];
    }
    events.slice("user_annotation", str(for_tools ? "ProfilerStep#" : "step ", step.number), kSteps,
                 step.span, {{"step", step.number}, {"seconds", parts}});
  }
  for (const Trace::Piece& piece : trace.pieces) {
    Json args = {{"phase", static_cast<int>(piece.phase)}, {"range", piece.range}};
    if (is_computing(piece.phase)) {
      args["stream"] = kCompute;
    }
    events.slice(is_computing(piece.phase) ? "kernel" : "wait", name_of(piece), kCompute,
                 piece.span, std::move(args));
  }
  for (const Trace::Collective& collective : trace.collectives) {
    const bool of_tensors = moves_tensors(collective.kind);
    const int track = track_of(collective, events);
    Json args = {{"group", str(collective.group)}, {"number", collective.number},
                 {"bytes", collective.bytes},      {"kind", collective.kind},
                 {"purpose", collective.purpose},  {"ranks", collective.ranks}};
    if (of_tensors) {
      args["stream"] = track;
    }
    const std::string plain = collective.purpose.empty()
                                  ? collective.kind
                                  : str(collective.kind, " (", collective.purpose, ")");
    events.slice(of_tensors ? "kernel" : "control",
                 for_tools && of_tensors ? "ncclKernel_" + collective.kind : plain, track,
                 collective.span, std::move(args));
  }
  for (const Trace::HostWork& work : trace.host_work) {
    events.slice("host", work.name, events.track_of(work.thread, work.thread), work.span,
                 {{"thread", work.thread}});
  }
  for (const Trace::MemoryUse& use : trace.memory) {
    events.memory(use);
  }
}

Json json_of(const ClockReading& reading) { return {reading.at, reading.offset, reading.bound}; }

constexpr int64_t kMostTime = int64_t{1} << 60;  // 36 years; sums of a few do not overflow

int64_t time_of(const Json& json) {
  const auto time = json.get<int64_t>();
  require(time > -kMostTime && time < kMostTime, "a time out of range");
  return time;
}

ClockReading reading_of(const Json& json) {
  return {time_of(json.at(0)), time_of(json.at(1)), time_of(json.at(2))};
}

int64_t nanoseconds(const Json& microseconds) {
  constexpr double kMost = 4e15;  // an exact number of nanoseconds, and far from overflow
  const double ns = microseconds.get<double>() * 1e3;
  require(std::abs(ns) < kMost, "a time out of range");
  return std::llround(ns);
}

Phase phase_of(int64_t number) {
  require(number >= 0 && number < static_cast<int64_t>(kPhases), "an unknown phase");
  return static_cast<Phase>(number);
}

void take(const Json& event, int64_t base, Trace& trace) {
  const std::string kind = event.at("ph");
  if (kind != "X" && kind != "C") {
    return;
  }
  const Json& args = event.at("args");
  const int64_t begin = base + nanoseconds(event.at("ts"));
  if (kind == "C") {
    trace.memory.push_back({begin, args.at("bytes").get<int64_t>()});
    return;
  }
  const TraceSpan span{begin, begin + nanoseconds(event.at("dur"))};
  if (args.contains("step")) {
    Trace::Step& step = trace.steps.emplace_back(args.at("step").get<int64_t>(), span);
    for (size_t i = 0; i < kPhases; ++i) {
      // Older traces do not have all parts.
      step.parts[i] = args.at("seconds").value(name_of(static_cast<Phase>(i)), 0.0);
    }
  } else if (args.contains("phase")) {
    trace.pieces.push_back({span, phase_of(args.at("phase").get<int64_t>()), args.at("range")});
  } else if (args.contains("kind")) {
    trace.collectives.push_back({.span = span,
                                 .group = std::stoull(args.at("group").get<std::string>()),
                                 .number = args.at("number").get<int64_t>(),
                                 .bytes = args.at("bytes").get<int64_t>(),
                                 .kind = args.at("kind"),
                                 .purpose = args.at("purpose"),
                                 .ranks = args.at("ranks")});
  } else {
    trace.host_work.push_back({span, args.at("thread"), event.at("name")});
  }
}

std::string text_of(Json file, const std::vector<Json>& events) {
  std::string text = file.dump(1);  // Holistic Trace Analysis wants a space before the rank
  text.resize(text.size() - 2);
  text += ",\n \"traceEvents\": [";
  for (const Json& event : events) {
    text += (text.back() == '[' ? "\n" : ",\n") +
            event.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return text + "\n]}\n";
}

}  // namespace

std::string trace_path(const std::string& folder, int rank) {
  char name[32] = {};
  std::snprintf(name, sizeof name, "/rank-%04d.json.gz", rank);
  return folder + name;
}

std::string rank_trace_text(const Trace& trace) {
  const int64_t base = trace.first.at;
  Events events(trace, base, [](int64_t time) { return time; });
  add_all(trace, true, events);
  return text_of({{"schemaVersion", 1},
                  {"displayTimeUnit", "ms"},
                  {"distributedInfo", {{"rank", trace.rank}, {"world_size", trace.ranks}}},
                  {"host", visible(trace.host)},
                  {"base_ns", base},
                  {"clock_first", json_of(trace.first)},
                  {"clock_last", json_of(trace.last)}},
                 events.all());
}

std::string job_trace_text(const std::vector<Trace>& traces) {
  struct Member {
    size_t trace;
    int track;
    TraceSpan span;  // by the clock of rank 0
  };
  std::map<std::string, std::vector<Member>> members;
  std::vector<Events> all;
  int64_t bound = 0;
  for (const Trace& trace : traces) {
    Events& events = all.emplace_back(trace, traces[0].by_rank_0(traces[0].first.at),
                                      [&](int64_t time) { return trace.by_rank_0(time); });
    add_all(trace, false, events);
    for (const Trace::Collective& one : trace.collectives) {
      members[id_of(one)].push_back(
          {.trace = all.size() - 1, .track = track_of(one, events), .span = one.span});
    }
    bound = std::max({bound, trace.first.bound, trace.last.bound});
  }
  for (const auto& [id, ranks] : members) {
    const auto begin = [&](const Member& member) {
      return all[member.trace].by_clock(member.span.begin);
    };
    const auto last = std::ranges::max_element(ranks, {}, begin);
    for (auto member = ranks.begin(); member != ranks.end(); ++member) {
      if (member != last) {
        const std::string arrow = str(id, "-", traces[member->trace].rank);
        all[last->trace].arrow(true, arrow, last->track, begin(*last));
        all[member->trace].arrow(false, arrow, member->track, begin(*last));
      }
    }
  }
  std::vector<Json> together;
  for (Events& events : all) {
    std::ranges::move(events.all(), std::back_inserter(together));
  }
  return text_of(
      {{"displayTimeUnit", "ms"}, {"clocks_agree_within_us", static_cast<double>(bound) * 1e-3}},
      together);
}

void write_trace(const std::string& path, const std::string& text) {
  replace_file(path, gzip(text));
}

Trace read_trace(const std::string& path) {
  constexpr RecordLimit kLargest = file_limit(256);  // a million events of 250 bytes
  const std::string text = read_whole_file(path, ByteStream::Unpack::kAuto, kLargest);
  try {
    const Json file = Json::parse(text);
    Trace trace{.rank = file.at("distributedInfo").at("rank"),
                .ranks = file.at("distributedInfo").at("world_size"),
                .host = file.at("host"),
                .first = reading_of(file.at("clock_first")),
                .last = reading_of(file.at("clock_last"))};
    const int64_t base = time_of(file.at("base_ns"));
    for (const Json& event : file.at("traceEvents")) {
      take(event, base, trace);
    }
    return trace;
  } catch (const std::exception&) {
    fail_data(path, ": it is no trace of a rank; run the steps of log.trace again");
  }
}

std::vector<Trace> read_traces(const std::string& folder) {
  std::vector<Trace> traces;
  for (int rank = 0, ranks = 1; rank < ranks; ++rank) {
    const std::string path = trace_path(folder, rank);
    if (!std::filesystem::exists(path)) {
      fail_data(path, ": there is no such file; run the steps of log.trace again");
    }
    traces.push_back(read_trace(path));
    ranks = traces.back().ranks;
  }
  return traces;
}

}  // namespace tandem
