// In place of src/trace/timeline.cpp, src/trace/flight_log.cpp and src/report/slowest_rank.cpp in
// tandem_no_timeline: measures no phase of a step, sends no message about it, and notes no
// collective. timeline_cost.py compares with it, on the CPU, where the time of a whole step comes
// from the host's clock.
#include <utility>

#include "src/report/slowest_rank.h"
#include "src/trace/flight_log.h"
#include "src/trace/timeline.h"

namespace tandem {

std::string_view name_of(Phase /*phase*/) { return "none"; }
Phase Timeline::enter(Stream& /*compute*/, Phase phase, bool /*on_host*/) {
  return std::exchange(phase_, phase);
}
void Timeline::enter_range(Stream& /*compute*/, const std::string& /*range*/) {}
void Timeline::wait(Stream& compute, const Event& event, Phase /*phase*/) { compute.wait(event); }
void Timeline::wait(Stream& compute, std::optional<Event>& event, Phase phase) {
  if (event) {
    wait(compute, *std::exchange(event, std::nullopt), phase);
  }
}
Timeline Timeline::take(Stream& /*compute*/) {
  Timeline ended;
  ended.marks_.emplace_back();
  return ended;
}
void Timeline::append(const Timeline& /*graph*/, const Tensor& /*stamps*/) {}
double Timeline::Mark::seconds_since(const Mark& /*earlier*/) const { return 0; }
std::vector<double> Timeline::times() const { return std::vector<double>(marks_.size()); }
PhaseSeconds Timeline::seconds() const { return {}; }

bool moves_tensors(std::string_view /*kind*/) { return true; }
int64_t flight_now() { return 0; }
std::string flight_home() { return ""; }
bool read_begin(const std::string& /*path*/, void* /*to*/, size_t /*bytes*/) { return false; }
std::string flight_path(const std::string& folder, int /*rank*/) { return folder; }
std::string shared_flight_path(int64_t /*start*/, int /*rank*/) { return ""; }
std::string FlightCollective::text() const { return kind; }
std::string FlightCollective::time(int64_t /*now*/) const { return ""; }
void FlightRecord::note_beat(int64_t /*now*/) {}
FlightLog::FlightLog() : record_(new FlightRecord{}) {}
void FlightLog::keep_in(const std::string& /*folder*/, int64_t /*start*/, int /*rank*/,
                        int /*ranks*/, const std::string& /*host*/) {}
void FlightLog::close(ExitCode /*code*/) {}
void FlightLog::enter(std::string_view /*part*/) {}
uint64_t FlightLog::open_group(const std::string& /*ranks*/) { return 0; }
uint64_t FlightLog::enqueue(uint64_t /*group*/, std::string_view /*ranks*/, int64_t /*number*/,
                            std::string_view /*kind*/, int64_t /*bytes*/) {
  return 0;
}
uint32_t FlightLog::take_calls() { return 0; }
void FlightLog::begin(uint64_t /*collective*/) {}
void FlightLog::end(uint64_t /*collective*/) {}
FlightLog& flight_log() {
  static auto& log = *new FlightLog;
  return log;
}

double RankTime::own() const { return 0; }
std::vector<RankTime> gather_times(Control& /*job*/, const RankTime& own) { return {own}; }
SlowestRank slowest_rank(const std::vector<RankTime>& /*ranks*/) { return {}; }
std::optional<int> StragglerWatch::add(const SlowestRank& /*slowest*/, int64_t /*steps*/) {
  return std::nullopt;
}

}  // namespace tandem
